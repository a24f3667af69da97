//! What a command works on: the image, what was derived from it, the time and the seed.
use crate::backing::Backing;
use crate::beacon::Beacon;
use crate::elections::Memory;
use crate::image::{self, Image, Key};

pub struct Run {
    pub image: &'static mut Image,
    pub memory: &'static mut Memory,
    pub backing: &'static mut Backing,
    /// Unix seconds.
    pub now: u64,
    pub slot: u64,
    /// For the epoch or round that may start. Who starts it says so (`seed_drawn`).
    pub seed: u64,
    /// Another number in each slot, which whoever sends the instruction can know.
    pub salt: u64,
    pub beacon: &'static mut Beacon,
    /// Whether this instruction changed the beacon.
    pub looked: bool,
}

impl Run {
    /// The seed has been used.
    pub fn seed_drawn(&mut self) -> u64 {
        self.beacon.drawn(self.slot);
        self.seed
    }
}

/// The program's heap, zero when an instruction begins: room for what has no place in an account and is too large for the stack.
/// `encoded` and `table` overlap; nobody uses both at once.
pub mod heap {
    use crate::image::Interval;

    const START: usize = 0x3_0000_0000;
    const QUEUE_BYTES: usize = 16 * 512;

    /// 512 intervals.
    pub fn queue() -> *mut Interval { START as *mut Interval }
    /// 768 intervals: a round's 513, cut between 256 shares.
    pub fn returned() -> *mut Interval { (START + QUEUE_BYTES) as *mut Interval }
    /// 12,288 bytes for one encoded commitment, behind the intervals.
    pub fn encoded() -> *mut u8 { (START + 20_480) as *mut u8 }
    /// 2048 numbers behind all others.
    pub fn table() -> *mut u16 { (START + 24_576) as *mut u16 }
}

const PLACES: usize = 2048;

/// Finds signers: open addressing over the heap, of keys that stay where they are. `salt` is another in every slot of the chain, so
/// keys that somebody made to collide do so once, and cost compute units then, nothing else.
pub struct Signers {
    salt: u64,
    first: *const u8,
    stride: usize,
}

impl Signers {
    /// An empty table over records of `stride` bytes that begin with a signer, at most 512 of them.
    pub fn over<T>(records: &[T], salt: u64) -> Signers {
        unsafe { core::ptr::write_bytes(heap::table(), 0, PLACES) };
        Signers { salt: salt | 1, first: records.as_ptr() as *const u8, stride: core::mem::size_of::<T>() }
    }

    #[inline(always)]
    fn start(&self, signer: &Key) -> usize {
        let word = u64::from(signer[0]) | u64::from(signer[1]) << 32;
        (word.wrapping_mul(self.salt) >> 53) as usize
    }

    #[inline(always)]
    fn key(&self, number: usize) -> &Key { unsafe { &*(self.first.add(number * self.stride) as *const Key) } }

    /// Puts in the record of this number, whose signer is not there yet.
    pub fn insert(&self, number: usize) {
        let mut place = self.start(self.key(number));
        unsafe {
            while *heap::table().add(place) != 0 {
                place = (place + 1) % PLACES;
            }
            *heap::table().add(place) = number as u16 + 1;
        }
    }

    pub fn contains(&self, signer: &Key) -> bool { self.find(signer) != image::NONE }

    /// The number of the record with this signer that was put in, NONE without one.
    #[inline(always)]
    pub fn find(&self, signer: &Key) -> usize {
        let mut place = self.start(signer);
        loop {
            let number = unsafe { *heap::table().add(place) } as usize;
            if number == 0 {
                return image::NONE;
            }
            if image::same(self.key(number - 1), signer) {
                return number - 1;
            }
            place = (place + 1) % PLACES;
        }
    }
}
