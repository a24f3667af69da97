"""The error of a transaction, as JSON and as a sentence, in the format of a real validator.

solders' own `to_json` drops the name of custom errors (`[0, 1]` for `[0, {"Custom": 1}]`).
"""

from __future__ import annotations

import re
from typing import Any

from solders.transaction_status import (
    InstructionErrorCustom,
    InstructionErrorFieldless,
    TransactionErrorDuplicateInstruction,
    TransactionErrorFieldless,
    TransactionErrorInstructionError,
    TransactionErrorInsufficientFundsForRent,
    TransactionErrorProgramExecutionTemporarilyRestricted,
)

_SENTENCES = {
    "AccountNotFound": "Attempt to debit an account but found no record of a prior credit.",
    "ProgramAccountNotFound": "Attempt to load a program that does not exist",
    "InsufficientFundsForFee": "Insufficient funds for fee",
    "InvalidAccountForFee": "This account may not be used to pay transaction fees",
    "AlreadyProcessed": "This transaction has already been processed",
    "BlockhashNotFound": "Blockhash not found",
    "SignatureFailure": "Transaction did not pass signature verification",
    "InvalidProgramForExecution": "This program may not be used for executing instructions",
    "SanitizeFailure": "Transaction failed to sanitize accounts offsets correctly",
    "AddressLookupTableNotFound": "Transaction loads an address table account that doesn't exist",
    "AccountLoadedTwice": "Account loaded twice",
    "InvalidAccountIndex": "Transaction contains an invalid account reference",
    "TooManyAccountLocks": "Transaction locked too many accounts",
    "GenericError": "generic instruction error",
    "InvalidArgument": "invalid program argument",
    "InvalidInstructionData": "invalid instruction data",
    "InvalidAccountData": "invalid account data for instruction",
    "AccountDataTooSmall": "account data too small for instruction",
    "InsufficientFunds": "insufficient funds for instruction",
    "IncorrectProgramId": "incorrect program id for instruction",
    "MissingRequiredSignature": "missing required signature for instruction",
    "AccountAlreadyInitialized": "instruction requires an uninitialized account",
    "UninitializedAccount": "instruction requires an initialized account",
    "NotEnoughAccountKeys": "insufficient account keys for instruction",
    "ComputationalBudgetExceeded": "Computational budget exceeded",
    "PrivilegeEscalation": "Cross-program invocation with unauthorized signer or writable account",
    "ProgramFailedToComplete": "Program failed to complete",
    "UnsupportedProgramId": "Unsupported program id",
    "ReadonlyDataModified": "instruction modified data of a read-only account",
    "ReadonlyLamportChange": "instruction changed the balance of a read-only account",
    "ExternalAccountDataModified": "instruction modified data of an account it does not own",
    "ExternalAccountLamportSpend": "instruction spent from the balance of an account it does not own",
    "InvalidSeeds": "Provided seeds do not result in a valid address",
    "InvalidAccountOwner": "Invalid account owner",
    "ArithmeticOverflow": "Program arithmetic overflowed",
    "MissingAccount": "An account required by the instruction is missing",
}


def error_json(error: object) -> Any:
    """Return an error as JSON (`err` of a result): a name, or an object with one name."""
    match error:
        case TransactionErrorInstructionError():
            inner = error.err
            if isinstance(inner, InstructionErrorCustom):
                return {"InstructionError": [error.index, {"Custom": inner.code}]}
            if isinstance(inner, InstructionErrorFieldless):
                return {"InstructionError": [error.index, _name(inner)]}
            return {"InstructionError": [error.index, {"BorshIoError": str(getattr(inner, "value", ""))}]}
        case TransactionErrorDuplicateInstruction():
            return {"DuplicateInstruction": error.index}
        case TransactionErrorInsufficientFundsForRent():
            return {"InsufficientFundsForRent": {"account_index": error.account_index}}
        case TransactionErrorProgramExecutionTemporarilyRestricted():
            return {"ProgramExecutionTemporarilyRestricted": {"account_index": error.account_index}}
        case TransactionErrorFieldless():
            return _name(error)
    message = f"LiteSVM gave an error of the unknown type {type(error).__name__}"
    raise TypeError(message)


def error_sentence(error: Any) -> str:
    """The text after `Transaction simulation failed: `. error: from `error_json`."""
    match error:
        case {"InstructionError": [index, {"Custom": code}]}:
            return f"Error processing Instruction {index}: custom program error: {code:#x}"
        case {"InstructionError": [index, str() as name]}:
            return f"Error processing Instruction {index}: {_SENTENCES.get(name, _words(name))}"
        case {"InsufficientFundsForRent": {"account_index": index}}:
            return f"Transaction results in an account ({index}) with insufficient funds for rent"
        case str() as name:
            return _SENTENCES.get(name, _words(name))
    return str(error)


def _name(fieldless: object) -> str:
    return str(fieldless).rpartition(".")[2]


def _words(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).capitalize()
