//! Bytes from outside: copied to their place, and judged as texts of the image, which are UTF-8 without NUL, zero-filled.
use psyche_common::runtime::sol_memcpy_;

/// Copies to a place of the same size. By syscall: what the compiler makes of bytes without alignment is one instruction for each.
#[inline(always)]
pub fn copy<T, U>(to: &mut T, from: &U) {
    const { assert!(core::mem::size_of::<T>() == core::mem::size_of::<U>()) };
    unsafe { sol_memcpy_(to as *mut T as *mut u8, from as *const U as *const u8, core::mem::size_of::<T>() as u64) };
}

/// Whether bytes are such a text; an empty one too.
pub fn is_text(place: &[u8]) -> bool {
    let len = place.iter().position(|byte| *byte == 0).unwrap_or(place.len());
    place[len..].iter().all(|byte| *byte == 0) && is_utf8(&place[..len])
}

/// As in the Unicode standard, table 3-7: shortest forms only, no surrogates, nothing above U+10FFFF.
fn is_utf8(text: &[u8]) -> bool {
    let mut at = 0;
    while at < text.len() {
        let lead = text[at];
        let (more, low, high) = match lead {
            0..=0x7f => (0, 0, 0),
            0xc2..=0xdf => (1, 0x80, 0xbf),
            0xe0 => (2, 0xa0, 0xbf),
            0xed => (2, 0x80, 0x9f),
            0xe1..=0xef => (2, 0x80, 0xbf),
            0xf0 => (3, 0x90, 0xbf),
            0xf1..=0xf3 => (3, 0x80, 0xbf),
            0xf4 => (3, 0x80, 0x8f),
            _ => return false,
        };
        if text.len() - at <= more {
            return false;
        }
        for place in 1..=more {
            let byte = text[at + place];
            let (least, most) = if place == 1 { (low, high) } else { (0x80, 0xbf) };
            if byte < least || byte > most {
                return false;
            }
        }
        at += 1 + more;
    }
    true
}
