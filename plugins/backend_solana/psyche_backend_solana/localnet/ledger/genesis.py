"""A new chain: LiteSVM with the settings that our ledger needs, with a faucet and the programs at their addresses.

LiteSVM's own checks of blockhashes and repeated signatures are off, because it knows only one blockhash and few signatures; the
ledger checks both. Signature verification stays on. Programs are installed as by the upgradeable loader (a program account that
points to its data), so tools that read or upgrade programs work.
"""

from __future__ import annotations

import hashlib
import struct

from solders.account import Account
from solders.epoch_schedule import EpochSchedule
from solders.keypair import Keypair
from solders.litesvm import LiteSVM
from solders.pubkey import Pubkey

from psyche_backend_solana.localnet.settings import LAMPORTS_PER_SOL
from psyche_core.errors import UserError

LOADER = Pubkey.from_string("BPFLoaderUpgradeab1e11111111111111111111111")
SYSTEM = Pubkey.default()
FIRST_SLOT = 1
SLOTS_PER_EPOCH = 432_000
_DATA_HEADER = 45
_FAUCET_LAMPORTS = 500_000_000 * LAMPORTS_PER_SOL


def faucet_key() -> Keypair:
    """The key that pays airdrops. It is public and has no value."""
    return Keypair.from_seed(hashlib.sha256(b"psyche/faucet/local chains").digest())


def make_svm() -> LiteSVM:
    """A virtual machine with only SPL's programs, and a faucet with many lamports."""
    svm = LiteSVM().with_blockhash_check(False).with_transaction_history(0)
    svm.set_epoch_schedule(EpochSchedule.without_warmup())
    svm.set_account(faucet_key().pubkey(), Account(_FAUCET_LAMPORTS, b"", SYSTEM, False, 0))
    return svm


def is_installed(svm: LiteSVM, address: Pubkey, elf: bytes) -> bool:
    """Whether exactly this program is installed there. Zeros at the end are ignored, because loaders append them."""
    data = svm.get_account(_data_address(address))
    return data is not None and bytes(data.data)[_DATA_HEADER:].rstrip(b"\0") == elf.rstrip(b"\0")


def install_program(svm: LiteSVM, address: Pubkey, elf: bytes, *, authority: Pubkey | None) -> tuple[Pubkey, ...]:
    """Install a program; returns the accounts it uses. Raises UserError if the loader rejects it."""
    data_address = _data_address(address)
    option = b"\0" + bytes(32) if authority is None else b"\1" + bytes(authority)
    data = struct.pack("<IQ", 3, 0) + option + elf
    program = struct.pack("<I", 2) + bytes(data_address)
    rent = svm.minimum_balance_for_rent_exemption
    try:
        svm.set_account(data_address, Account(rent(len(data)), data, LOADER, False, 0))
        svm.set_account(address, Account(rent(len(program)), program, LOADER, True, 0))
    except Exception as error:  # an exception class that solders does not export
        message = f"the program for {address} ({len(elf)} bytes) cannot be loaded: {error}; build it again"
        raise UserError(message) from error

    return data_address, address


def _data_address(address: Pubkey) -> Pubkey:
    found, _ = Pubkey.find_program_address([bytes(address)], LOADER)
    return found
