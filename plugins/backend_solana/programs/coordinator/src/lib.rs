#![no_std]
use psyche_common::{Error, Input, Res};

/// # Safety
/// Called by the loader only.
#[no_mangle]
pub unsafe extern "C" fn entrypoint(buffer: *mut u8) -> u64 {
    match Input::parse(buffer).and_then(|input| run(&input)) {
        Ok(()) => 0,
        Err(error) => error.0 as u64,
    }
}

fn run(input: &Input) -> Res {
    let [payer, target, system] = input.accounts::<3>()?;
    psyche_common::platform::log_data(&[input.data]);
    let mut key = [0; 32];
    let bump = psyche_common::platform::find_address(&[b"x"], input.program, &mut key);
    target.must_be(&key)?;
    psyche_common::cpi::create(payer, target, system, input.program, 100, &[b"x", &[bump]])?;
    target.data_mut()[0..8].copy_from_slice(&psyche_common::arithmetic::mul_div(1 << 63, 6, 7).ok_or(Error::OVERFLOW)?.to_le_bytes());
    target.data_mut()[8] = bump;
    Ok(())
}
