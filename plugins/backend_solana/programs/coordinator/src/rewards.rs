//! Rewards: what an epoch pays to whom, and the accounts that hold it (psyche_core/coordinator/rewards.py).
use crate::challenges::STRIKES_EJECT;
use crate::image::{health, same, Account, Client, Key, MAX_ACCOUNTS, NONE};
use crate::refusal::{Outcome, INVALID_SETTLEMENT};
use crate::run::{Run, Signers};
use core::cmp::Ordering;
use psyche_common::arithmetic::mul_div;

/// Signers in the order of their bytes.
fn compare(a: &Key, b: &Key) -> Ordering {
    for word in 0..8 {
        if a[word] != b[word] {
            return if a[word].swap_bytes() < b[word].swap_bytes() { Ordering::Less } else { Ordering::Greater };
        }
    }
    Ordering::Equal
}

/// The first place whose signer is not below this one.
fn place_of(run: &Run, signer: &Key) -> usize {
    let accounts = run.image.accounts.used();
    let (mut low, mut high) = (0, accounts.len());
    while low < high {
        let middle = (low + high) / 2;
        if compare(&accounts[middle].signer, signer) == Ordering::Less {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

fn has_account(run: &Run, signer: &Key) -> bool {
    let place = place_of(run, signer);
    place < run.image.accounts.len() && compare(&run.image.accounts.items[place].signer, signer) == Ordering::Equal
}

/// floor(pool * own / total), where own <= total.
fn portion(pool: u64, own: u64, total: u64) -> u64 {
    let (whole, rest) = (pool / total, pool % total);
    if total >> 32 == 0 { whole * own + rest * own / total } else { mul_div(pool, own, total).unwrap_or(0) }
}

/// Whether a client is paid: who has left with a strike is not; where shares are checked, who is new or has left must have passed
/// a check in this epoch.
fn is_paid(run: &Run, client: &Client) -> bool {
    let passed = run.image.config.verification_percent == 0 || client.standing.scores > 0;
    if client.state == health::HEALTHY {
        return passed || was_paid(run, &client.id.signer);
    }
    client.state != health::EJECTED && client.standing.strikes == 0 && passed
}

/// Whether the run has paid a signer before.
fn was_paid(run: &Run, signer: &Key) -> bool {
    has_account(run, signer) && run.image.accounts.items[place_of(run, signer)].earned > 0
}

/// Whether a client is slashed: who was ejected for what it signed, not for strikes.
fn is_slashed(client: &Client) -> bool { client.state == health::EJECTED && client.standing.strikes < STRIKES_EJECT }

/// Pays the epoch that ends now and notes what its ejected clients are slashed.
#[inline(never)]
pub fn share_rewards(run: &mut Run) {
    let rates = run.image.epoch.rates;
    let mut total = 0u64;
    for client in run.image.epoch.clients.used() {
        if is_paid(run, client) {
            total += u64::from(client.accepted_rounds);
        }
    }
    let mut paid = 0u64;
    for slot in 0..run.image.epoch.clients.len() {
        let client = &run.image.epoch.clients.items[slot];
        let (own, signer) = (u64::from(client.accepted_rounds), client.id.signer);
        if is_slashed(client) {
            if rates.slashing > 0 {
                credit(run, &signer, 0, rates.slashing);
            }
        } else if own > 0 && is_paid(run, client) {
            let earned = portion(rates.earning, own, total);
            if earned > 0 {
                paid += earned;
                credit(run, &signer, earned, 0);
            }
        }
    }
    run.backing.keep(paid);
}

/// Adds to a signer's balances, which stop at 64 bits; opens its account if it has none.
fn credit(run: &mut Run, signer: &Key, earned: u64, slashed: u64) {
    let place = place_of(run, signer);
    let accounts = &mut run.image.accounts;
    let count = accounts.len();
    if place == count || compare(&accounts.items[place].signer, signer) != Ordering::Equal {
        if count == MAX_ACCOUNTS {
            return; // cannot be: who could not be paid was refused when joining
        }
        let from = unsafe { accounts.items.as_mut_ptr().add(place) };
        unsafe { core::ptr::copy(from, from.add(1), count - place) };
        accounts.items[place] = Account { signer: *signer, earned: 0, slashed: 0 };
        accounts.count += 1;
    }
    let account = &mut accounts.items[place];
    account.earned = account.earned.saturating_add(earned);
    account.slashed = account.slashed.saturating_add(slashed);
}

/// Frees the account of a signer that is neither in the last epoch nor pending (psyche_core/coordinator/rewards.py).
pub fn settle(run: &mut Run, signer: &Key) -> Outcome {
    let place = place_of(run, signer);
    let waiting = run.image.pending.used().iter().any(|member| same(&member.signer, signer));
    if waiting || run.image.slot_of(signer) != NONE || !has_account(run, signer) {
        return Err(INVALID_SETTLEMENT);
    }
    let accounts = &mut run.image.accounts;
    let behind = accounts.len() - place - 1;
    unsafe { core::ptr::copy(accounts.items.as_ptr().add(place + 1), accounts.items.as_mut_ptr().add(place), behind) };
    accounts.truncate(place + behind);
    Ok(())
}

/// Whether a signer has an account, or one is left for it beside all who may need one.
pub fn has_account_for(run: &Run, signer: &Key) -> bool {
    let image = &run.image;
    let room = MAX_ACCOUNTS - image.accounts.len();
    if image.epoch.clients.len() + image.pending.len() < room || has_account(run, signer) {
        return true;
    }
    // its epoch's clients and the pending members that have none, each once, and itself
    let clients = Signers::over(image.epoch.clients.used(), run.salt);
    let mut without = usize::from(image.slot_of(signer) == NONE);
    for (slot, client) in image.epoch.clients.used().iter().enumerate() {
        clients.insert(slot);
        without += usize::from(!has_account(run, &client.id.signer));
    }
    for member in image.pending.used() {
        without += usize::from(!clients.contains(&member.signer) && !has_account(run, &member.signer));
    }
    without <= room
}
