//! One account of an instruction, as the loader lays it out, and the checks every use of one begins with.
use crate::platform::same;
use crate::{Error, Pubkey, Res};

#[repr(C)]
pub(crate) struct Raw {
    pub dup: u8,
    pub signer: u8,
    pub writable: u8,
    pub executable: u8,
    pub original_len: u32,
    pub key: Pubkey,
    pub owner: Pubkey,
    pub lamports: u64,
    pub len: u64,
}

pub(crate) const HEADER_BYTES: usize = core::mem::size_of::<Raw>();
pub(crate) const GROWTH_BYTES: usize = 10_240;

#[derive(Clone, Copy)]
pub struct Account(pub(crate) *mut Raw);

impl Account {
    pub const NONE: Account = Account(core::ptr::null_mut());

    pub fn key(&self) -> &'static Pubkey { unsafe { &(*self.0).key } }
    pub fn owner(&self) -> &'static Pubkey { unsafe { &(*self.0).owner } }
    pub fn lamports(&self) -> u64 { unsafe { (*self.0).lamports } }
    pub fn set_lamports(&self, lamports: u64) { unsafe { (*self.0).lamports = lamports } }
    pub fn is_signer(&self) -> bool { unsafe { (*self.0).signer != 0 } }
    pub fn is_writable(&self) -> bool { unsafe { (*self.0).writable != 0 } }
    pub fn len(&self) -> usize { unsafe { (*self.0).len as usize } }
    pub fn is_empty(&self) -> bool { self.len() == 0 }
    pub fn ptr(&self) -> *mut u8 { unsafe { (self.0 as *mut u8).add(HEADER_BYTES) } }
    pub fn data(&self) -> &'static [u8] { unsafe { core::slice::from_raw_parts(self.ptr(), self.len()) } }
    #[allow(clippy::mut_from_ref)]
    pub fn data_mut(&self) -> &'static mut [u8] { unsafe { core::slice::from_raw_parts_mut(self.ptr(), self.len()) } }

    pub fn must_sign(&self) -> Res { if self.is_signer() { Ok(()) } else { Err(Error::MISSING_SIGNER) } }
    pub fn must_be_writable(&self) -> Res { if self.is_writable() { Ok(()) } else { Err(Error::NOT_WRITABLE) } }
    pub fn must_be_owned_by(&self, program: &Pubkey) -> Res { if same(self.owner(), program) { Ok(()) } else { Err(Error::WRONG_OWNER) } }
    pub fn must_be(&self, key: &Pubkey) -> Res { if same(self.key(), key) { Ok(()) } else { Err(Error::WRONG_ADDRESS) } }

    /// Bytes more or fewer, at most 10,240 more than before the instruction; what is new is zero.
    pub fn resize(&self, len: usize) -> Res {
        let original = unsafe { (*self.0).original_len as usize };
        let before = self.len();
        if len > original + GROWTH_BYTES {
            return Err(Error::WRONG_SIZE);
        }
        unsafe { (*self.0).len = len as u64 };
        if len > before {
            unsafe { core::ptr::write_bytes(self.ptr().add(before), 0, len - before) }; // `fill` would be a loop over bytes
        }
        Ok(())
    }

    /// The account emptied: its lamports go to `to`, its data is cleared and it returns to the system program.
    pub fn close(&self, to: &Account) -> Res {
        if core::ptr::eq(self.0, to.0) {
            return Err(Error::SAME_ACCOUNT);
        }
        let sum = to.lamports().checked_add(self.lamports());
        to.set_lamports(match sum { Some(sum) => sum, None => return Err(Error::OVERFLOW) });
        self.set_lamports(0);
        unsafe {
            core::ptr::write_bytes(self.ptr(), 0, self.len());
            (*self.0).len = 0;
            (*self.0).owner = [0; 32];
        }
        Ok(())
    }
}
