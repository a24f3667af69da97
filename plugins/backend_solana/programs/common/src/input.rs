//! The loader's parameter buffer: accounts, instruction data, our own address; and a reader of packed little-endian data.
use crate::account::{Account, Raw, GROWTH_BYTES, HEADER_BYTES};
use crate::{Error, Pubkey, Res};

pub const MAX_ACCOUNTS: usize = 24;

pub struct Input {
    pub table: [Account; MAX_ACCOUNTS],
    pub count: usize,
    pub data: &'static [u8],
    pub program: &'static Pubkey,
}

impl Input {
    /// # Safety
    /// `buffer` is the loader's parameter buffer (aligned, "BPFLoader2" and later).
    #[inline(always)]
    pub unsafe fn parse(buffer: *mut u8) -> Res<Input> {
        let count = *(buffer as *const u64) as usize;
        let mut table = [Account::NONE; MAX_ACCOUNTS];
        if count > MAX_ACCOUNTS {
            return Err(Error::TOO_MANY_ACCOUNTS);
        }
        let mut p = buffer.add(8);
        for i in 0..count {
            if *p == 0xff {
                let raw = p as *mut Raw;
                (*raw).original_len = (*raw).len as u32; // room the loader left for us to remember it
                table[i] = Account(raw);
                p = p.add(HEADER_BYTES + (*raw).len as usize + GROWTH_BYTES);
                p = p.add(p.align_offset(8)).add(8);
            } else {
                table[i] = table[*p as usize];
                p = p.add(8);
            }
        }
        let len = *(p as *const u64) as usize;
        let data = core::slice::from_raw_parts(p.add(8), len);
        Ok(Input { table, count, data, program: &*(p.add(8 + len) as *const Pubkey) })
    }

    /// The accounts, exactly so many of them or more.
    #[inline(always)]
    pub fn accounts<const N: usize>(&self) -> Res<&[Account; N]> {
        if self.count < N {
            return Err(Error::NOT_ENOUGH_ACCOUNTS);
        }
        Ok(unsafe { &*(self.table.as_ptr() as *const [Account; N]) })
    }
}

/// Reads packed data from its front. Too short is BAD_INSTRUCTION; so is anything left when `end` is called.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    #[inline(always)]
    pub fn bytes(&mut self, n: usize) -> Res<&'a [u8]> {
        if self.0.len() < n {
            return Err(Error::BAD_INSTRUCTION);
        }
        let (front, rest) = self.0.split_at(n);
        self.0 = rest;
        Ok(front)
    }

    #[inline(always)]
    pub fn array<const N: usize>(&mut self) -> Res<&'a [u8; N]> {
        let front = self.bytes(N)?;
        Ok(unsafe { &*(front.as_ptr() as *const [u8; N]) })
    }

    #[inline(always)]
    pub fn u8(&mut self) -> Res<u8> { Ok(self.bytes(1)?[0]) }
    #[inline(always)]
    pub fn u16(&mut self) -> Res<u16> { Ok(u16::from_le_bytes(*self.array()?)) }
    #[inline(always)]
    pub fn u32(&mut self) -> Res<u32> { Ok(u32::from_le_bytes(*self.array()?)) }
    #[inline(always)]
    pub fn u64(&mut self) -> Res<u64> { Ok(u64::from_le_bytes(*self.array()?)) }

    /// 0 or 1, nothing else.
    #[inline(always)]
    pub fn flag(&mut self) -> Res<bool> {
        let byte = self.u8()?;
        if byte > 1 { Err(Error::BAD_INSTRUCTION) } else { Ok(byte == 1) }
    }

    #[inline(always)]
    pub fn end(self) -> Res { if self.0.is_empty() { Ok(()) } else { Err(Error::BAD_INSTRUCTION) } }
}
