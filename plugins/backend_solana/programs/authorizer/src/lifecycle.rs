//! What the grantor does: create, switch on and off, close.
use psyche_common::authorization::{bytes_for, read, Authorization, SEED};
use psyche_common::platform::{find_address, same};
use psyche_common::{cpi, record, Error, Input, Reader, Res};

pub const STILL_ACTIVE: Error = Error(100);
pub const BAD_SCOPE: Error = Error(101);

/// A scope is 1 to 32 bytes of text without NUL, zero after its end.
fn must_be_scope(scope: &[u8; 32], len: usize) -> Res {
    if len == 0 || len > scope.len() {
        return Err(BAD_SCOPE);
    }
    let (text, rest) = scope.split_at(len);
    if text.contains(&0) || rest.iter().any(|byte| *byte != 0) { Err(BAD_SCOPE) } else { Ok(()) }
}

pub fn create(input: &Input, data: &[u8]) -> Res {
    let [payer, grantor, account, system] = input.accounts::<4>()?;
    let mut reader = Reader(data);
    let grantee = reader.array::<32>()?;
    let len = reader.u8()?;
    let scope = reader.array::<32>()?;
    reader.end()?;
    must_be_scope(scope, len as usize)?;
    grantor.must_sign()?;
    let mut key = [0; 32];
    let text = &scope[..len as usize];
    let bump = find_address(&[SEED, grantor.key(), grantee, text], input.program, &mut key);
    account.must_be(&key)?;
    cpi::create(payer, account, system, input.program, bytes_for(0) as u64, &[SEED, grantor.key(), grantee, text, &[bump]])?;
    let made: &mut Authorization = record::begin(account)?;
    made.bump = bump;
    made.scope_len = len;
    made.grantor = *grantor.key();
    made.grantee = *grantee;
    made.scope = *scope;
    Ok(())
}

pub fn grantor_update(input: &Input, data: &[u8]) -> Res {
    let [grantor, account] = input.accounts::<2>()?;
    let mut reader = Reader(data);
    let active = reader.flag()?;
    let limit = if reader.0.is_empty() { None } else { Some(reader.u16()?) };
    reader.end()?;
    grantor.must_sign()?;
    account.must_be_writable()?;
    let found = read(account, input.program)?;
    if !same(&found.grantor, grantor.key()) {
        return Err(Error::NOT_AUTHORITY);
    }
    found.active = active as u8;
    if let Some(limit) = limit {
        found.limit = limit;
    }
    Ok(())
}

pub fn close(input: &Input, data: &[u8]) -> Res {
    let [grantor, spill, account] = input.accounts::<3>()?;
    Reader(data).end()?;
    grantor.must_sign()?;
    spill.must_be_writable()?;
    account.must_be_writable()?;
    let found = read(account, input.program)?;
    if !same(&found.grantor, grantor.key()) {
        return Err(Error::NOT_AUTHORITY);
    }
    if found.active != 0 {
        return Err(STILL_ACTIVE);
    }
    account.close(spill)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes() {
        let text = |bytes: &[u8]| { let mut scope = [0; 32]; scope[..bytes.len()].copy_from_slice(bytes); scope };
        assert_eq!(must_be_scope(&text(b"Join"), 4), Ok(()));
        assert_eq!(must_be_scope(&[b'x'; 32], 32), Ok(()));
        for (scope, len) in [(text(b"Join"), 3), (text(b"Join"), 5), (text(b""), 0), ([b'x'; 32], 33), (text(b"a\0b"), 3)] {
            assert_eq!(must_be_scope(&scope, len), Err(BAD_SCOPE), "{scope:?} {len}");
        }
    }
}
