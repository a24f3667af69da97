//! What the grantee does: name delegates, each once; the account grows and shrinks with them.
use psyche_common::account::Account;
use psyche_common::authorization::{bytes_for, read, Authorization, BYTES, MAX_DELEGATES};
use psyche_common::platform::{rent_exempt, same};
use psyche_common::{cpi, ids, Error, Input, Reader, Res};

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

/// A key as numbers: most keys differ in the first, which costs much less to see than a syscall for each pair.
type Words = [u64; 4];

/// Adds who is not there yet after the first `total`, and returns how many there are then. There is room for all of them.
fn append(account: &Account, mut total: usize, added: &[u8]) -> usize {
    // an account's data is aligned to 8, and so are its delegates; keys in an instruction are not
    let first = unsafe { account.ptr().add(BYTES) } as *mut Words;
    for chunk in added.chunks_exact(32) {
        unsafe {
            core::ptr::copy_nonoverlapping(chunk.as_ptr(), first.add(total) as *mut u8, 32);
            if !is_known(first, first.add(total)) {
                total += 1;
            }
        }
    }
    total
}

/// Whether the key at `last` is among those from `first` on before it.
unsafe fn is_known(first: *const Words, last: *const Words) -> bool {
    let (key, mut place) = (&*last, first);
    while place < last {
        let other = &*place;
        if other[0] == key[0] && other[1..] == key[1..] {
            return true;
        }
        place = place.add(1);
    }
    false
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
