//! An authorizer's account: who may do what in a grantor's name. Written by the authorizer, read by whoever asks.
use crate::account::Account;
use crate::platform::same;
use crate::record::{open, Header, Record};
use crate::{ids, Error, Pubkey, Res};

pub const SEED: &[u8] = b"authorization";
pub const MAX_DELEGATES: usize = 256;
pub const MAX_SCOPE: usize = 32;
/// What a run's `join_authority` grants to its members.
pub const JOIN_SCOPE: &[u8] = b"CoordinatorJoinRun";

const EVERYBODY: Pubkey = [0; 32];

#[repr(C)]
pub struct Authorization {
    pub header: Header,
    pub bump: u8,
    pub active: u8,
    pub scope_len: u8,
    zero: u8,
    pub grantor: Pubkey,
    pub grantee: Pubkey,
    pub scope: [u8; MAX_SCOPE],
    pub delegate_count: u32,
    zeros: u32,
    /// Most members that may be pending by it at once, 0 for no such limit.
    pub limit: u16,
    reserved: [u8; 70],
}

pub const BYTES: usize = core::mem::size_of::<Authorization>();
const _: () = assert!(BYTES == 192 && core::mem::offset_of!(Authorization, delegate_count) == 112 && core::mem::offset_of!(Authorization, limit) == 120);

unsafe impl Record for Authorization {
    const MAGIC: [u8; 8] = *b"PsycheAu";
    const VERSION: u32 = 1;
}

pub const fn bytes_for(delegates: usize) -> usize { BYTES + 32 * delegates }

/// The account as an authorization of this program, its delegates complete.
#[inline(always)]
pub fn read(account: &Account, program: &Pubkey) -> Res<&'static mut Authorization> {
    let found: &mut Authorization = open(account, program)?;
    if account.len() != bytes_for(found.delegate_count as usize) { Err(Error::WRONG_SIZE) } else { Ok(found) }
}

/// The delegates of an account that `read` accepted.
pub fn delegates(account: &Account) -> &'static [Pubkey] {
    let count = (account.len() - BYTES) / 32;
    unsafe { core::slice::from_raw_parts(account.ptr().add(BYTES) as *const Pubkey, count) }
}

impl Authorization {
    pub fn is_for_everybody(&self) -> bool { same(&self.grantee, &EVERYBODY) }
}

/// It, if it is an active authorization by `grantor`, for `user` and `scope`; NOT_AUTHORITY if it is another's, another scope's or off.
pub fn must_allow(account: &Account, grantor: &Pubkey, user: &Pubkey, scope: &[u8]) -> Res<&'static mut Authorization> {
    let found = read(account, &ids::AUTHORIZER)?;
    let for_this = same(&found.grantor, grantor) && found.active == 1 && found.scope_len as usize == scope.len();
    if !for_this || found.scope[..scope.len()] != *scope {
        return Err(Error::NOT_AUTHORITY);
    }
    let named = same(&found.grantee, &EVERYBODY) || same(&found.grantee, user);
    if named || delegates(account).iter().any(|delegate| same(delegate, user)) { Ok(found) } else { Err(Error::NOT_AUTHORITY) }
}
