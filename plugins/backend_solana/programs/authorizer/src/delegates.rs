//! What the grantee does: name delegates, each once; the account grows and shrinks with them.
use psyche_common::account::Account;
use psyche_common::authorization::{bytes_for, read, Authorization, BYTES, MAX_DELEGATES};
use psyche_common::platform::{rent_exempt, same};
use psyche_common::{cpi, ids, Error, Input, Pubkey, Reader, Res};

pub const TOO_MANY_DELEGATES: Error = Error(102);

pub fn grantee_update(input: &Input, data: &[u8]) -> Res {
    let [payer, grantee, account, system] = input.accounts::<4>()?;
    let mut reader = Reader(data);
    let clear = reader.flag()?;
    let count = reader.u8()? as usize;
    let added = reader.bytes(32 * count)?;
    reader.end()?;
    payer.must_sign()?;
    payer.must_be_writable()?;
    grantee.must_sign()?;
    account.must_be_writable()?;
    system.must_be(&ids::SYSTEM)?;
    let found = read(account, input.program)?;
    if !same(&found.grantee, grantee.key()) {
        return Err(Error::NOT_AUTHORITY);
    }
    let old = found.delegate_count as usize;
    let kept = if clear { 0 } else { old };
    account.resize(bytes_for(kept + count))?;
    let total = append(account, kept, added);
    if total > MAX_DELEGATES {
        return Err(TOO_MANY_DELEGATES);
    }
    found.delegate_count = total as u32;
    account.resize(bytes_for(total))?;
    settle_rent(payer, account, system, old, found)
}

/// Adds who is not there yet after the first `total`, and returns how many there are then.
fn append(account: &Account, mut total: usize, added: &[u8]) -> usize {
    let first = unsafe { account.ptr().add(BYTES) } as *mut Pubkey;
    for chunk in added.chunks_exact(32) {
        let key = unsafe { &*(chunk.as_ptr() as *const Pubkey) };
        let known = unsafe { core::slice::from_raw_parts(first, total) };
        if !known.iter().any(|other| same(other, key)) {
            unsafe { *first.add(total) = *key };
            total += 1;
        }
    }
    total
}

/// What the account now needs more comes from the payer; what it needs less goes there, and nothing else that may lie on it.
fn settle_rent(payer: &Account, account: &Account, system: &Account, old: usize, found: &Authorization) -> Res {
    let (before, now) = (rent_exempt(bytes_for(old) as u64), rent_exempt(bytes_for(found.delegate_count as usize) as u64));
    let held = account.lamports();
    if held < now {
        return cpi::pay(payer, account, system, now - held);
    }
    let spare = core::cmp::min(before.saturating_sub(now), held - now);
    account.set_lamports(held - spare);
    payer.set_lamports(payer.lamports().checked_add(spare).ok_or(Error::OVERFLOW)?);
    Ok(())
}
