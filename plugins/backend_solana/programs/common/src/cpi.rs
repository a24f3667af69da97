//! Calls of other programs, signing for derived addresses of ours.
use crate::account::Account;
use crate::platform::rent_exempt;
use crate::{ids, runtime as rt, Error, Pubkey, Res};

#[repr(C)]
pub struct Meta<'a> {
    pub key: &'a Pubkey,
    pub writable: bool,
    pub signer: bool,
}

#[repr(C)]
struct Instruction {
    program: *const u8,
    metas: *const u8,
    meta_count: u64,
    data: *const u8,
    len: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Info {
    key: *const u8,
    lamports: *const u64,
    len: u64,
    data: *const u8,
    owner: *const u8,
    rent_epoch: u64,
    signer: bool,
    writable: bool,
    executable: bool,
}

const MOST_ACCOUNTS: usize = 12;

/// What `invoke` was given, in one place: a function of more than five words of arguments would be inlined wherever it is called.
struct Call<'a> {
    instruction: Instruction,
    accounts: &'a [Account],
    seeds: &'a [&'a [u8]],
}

/// Calls `program`; `seeds`, bump included, sign for one derived address of ours, or are empty.
#[inline(always)]
pub fn invoke(program: &Pubkey, metas: &[Meta], data: &[u8], accounts: &[Account], seeds: &[&[u8]]) -> Res {
    let instruction = Instruction {
        program: program.as_ptr(), metas: metas.as_ptr() as *const u8, meta_count: metas.len() as u64, data: data.as_ptr(), len: data.len() as u64,
    };
    run(&Call { instruction, accounts, seeds })
}

#[inline(never)]
fn run(call: &Call) -> Res {
    const NONE: Info = Info {
        key: core::ptr::null(), lamports: core::ptr::null(), len: 0, data: core::ptr::null(), owner: core::ptr::null(), rent_epoch: 0,
        signer: false, writable: false, executable: false,
    };
    let mut infos = [NONE; MOST_ACCOUNTS];
    if call.accounts.len() > infos.len() {
        return Err(Error::TOO_MANY_ACCOUNTS);
    }
    for (info, account) in infos.iter_mut().zip(call.accounts) {
        unsafe {
            let raw = account.0;
            *info = Info {
                key: (*raw).key.as_ptr(), lamports: &(*raw).lamports, len: (*raw).len, data: account.ptr(), owner: (*raw).owner.as_ptr(),
                rent_epoch: 0, signer: (*raw).signer != 0, writable: (*raw).writable != 0, executable: (*raw).executable != 0,
            };
        }
    }
    let signer: [&[&[u8]]; 1] = [call.seeds];
    let failed = unsafe {
        rt::sol_invoke_signed_c(
            &call.instruction as *const _ as *const u8, infos.as_ptr() as *const u8, call.accounts.len() as u64, signer.as_ptr() as *const u8,
            u64::from(!call.seeds.is_empty()),
        )
    };
    if failed == 0 { Ok(()) } else { Err(Error::CALL_FAILED) }
}

/// Lamports from a signer of the transaction to any account.
#[inline(never)]
pub fn pay(payer: &Account, account: &Account, system: &Account, lamports: u64) -> Res {
    let mut transfer = [0u8; 12];
    transfer[0] = 2;
    transfer[4..].copy_from_slice(&lamports.to_le_bytes());
    let metas = [Meta { key: payer.key(), writable: true, signer: true }, Meta { key: account.key(), writable: true, signer: false }];
    invoke(&ids::SYSTEM, &metas, &transfer, &[*payer, *account, *system], &[])
}

/// A new account of ours at a derived address, rent paid by `payer`. Works when somebody sent lamports there before.
#[inline(always)]
pub fn create(payer: &Account, account: &Account, system: &Account, program: &Pubkey, space: u64, seeds: &[&[u8]]) -> Res {
    create_one(&New { payer, account, system, program, space, seeds })
}

struct New<'a> {
    payer: &'a Account,
    account: &'a Account,
    system: &'a Account,
    program: &'a Pubkey,
    space: u64,
    seeds: &'a [&'a [u8]],
}

#[inline(never)]
fn create_one(new: &New) -> Res {
    let New { payer, account, system, .. } = new;
    payer.must_sign()?;
    payer.must_be_writable()?;
    account.must_be_writable()?;
    system.must_be(&ids::SYSTEM)?;
    if !account.is_empty() || account.must_be_owned_by(&ids::SYSTEM).is_err() {
        return Err(Error::ALREADY_EXISTS);
    }
    let rent = rent_exempt(new.space);
    if account.lamports() < rent {
        pay(payer, account, system, rent - account.lamports())?;
    }
    let metas = [Meta { key: account.key(), writable: true, signer: true }];
    let mut allocate = [0u8; 12];
    allocate[0] = 8;
    allocate[4..].copy_from_slice(&new.space.to_le_bytes());
    let accounts = [**account, **system];
    invoke(&ids::SYSTEM, &metas, &allocate, &accounts, new.seeds)?;
    let mut assign = [0u8; 36];
    assign[0] = 1;
    assign[4..].copy_from_slice(new.program);
    invoke(&ids::SYSTEM, &metas, &assign, &accounts, new.seeds)
}
