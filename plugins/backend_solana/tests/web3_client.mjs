// What @solana/web3.js, a client nobody here wrote, makes of a local chain. Run by test_localnet_web3.py: node web3_client.mjs RPC_URL
import assert from "node:assert/strict";
import {
  AddressLookupTableProgram, ComputeBudgetProgram, Connection, Keypair, LAMPORTS_PER_SOL, PublicKey, SendTransactionError,
  SystemProgram, Transaction, TransactionInstruction, TransactionMessage, VersionedTransaction, sendAndConfirmTransaction,
} from "@solana/web3.js";

const connection = new Connection(process.argv[2], "confirmed"); // websockets: where web3.js looks for them, one port further
const payer = Keypair.generate();
const other = Keypair.generate();

async function confirmed(signature) {
  const latest = await connection.getLatestBlockhash();
  const { value } = await connection.confirmTransaction({ signature, ...latest });
  assert.equal(value.err, null);
}

assert.match((await connection.getVersion())["solana-core"], /^\d+\.\d+\.\d+$/);
await confirmed(await connection.requestAirdrop(payer.publicKey, 5 * LAMPORTS_PER_SOL));
assert.equal(await connection.getBalance(payer.publicKey), 5 * LAMPORTS_PER_SOL);

const seen = { account: [], logs: [], slots: [] };
const listeners = [
  connection.onAccountChange(other.publicKey, (info) => seen.account.push(info.lamports)),
  connection.onLogs(other.publicKey, (entry) => seen.logs.push(entry.signature)),
  connection.onSlotChange((info) => seen.slots.push(info.slot)),
];
await new Promise((done) => connection.onSlotChange(done)); // subscriptions are sent in order, so those before are in force

const transfer = SystemProgram.transfer({ fromPubkey: payer.publicKey, toPubkey: other.publicKey, lamports: LAMPORTS_PER_SOL });
const signature = await sendAndConfirmTransaction(connection, new Transaction().add(transfer), [payer]);
assert.equal(await connection.getBalance(other.publicKey), LAMPORTS_PER_SOL);

const plain = await connection.getTransaction(signature, { maxSupportedTransactionVersion: 0 });
assert.equal(plain.meta.err, null);
assert.equal(plain.meta.postBalances[1] - plain.meta.preBalances[1], LAMPORTS_PER_SOL);
const parsed = await connection.getParsedTransaction(signature, { maxSupportedTransactionVersion: 0 });
assert.ok(parsed.transaction.message.accountKeys[0].signer);
const history = await connection.getSignaturesForAddress(other.publicKey);
assert.deepEqual(history.map((one) => one.signature), [signature]);
const batch = await connection.getTransactions([signature, signature], { maxSupportedTransactionVersion: 0 }); // a JSON-RPC batch
assert.deepEqual(batch.map((one) => one.slot), [plain.slot, plain.slot]);
const block = await connection.getBlock(plain.slot, { maxSupportedTransactionVersion: 0 });
assert.ok(block.transactions.some((one) => one.transaction.signatures[0] === signature));
const fees = await connection.getFeeForMessage(
  new TransactionMessage({
    payerKey: payer.publicKey, instructions: [transfer], recentBlockhash: (await connection.getLatestBlockhash()).blockhash,
  }).compileToV0Message(),
);
assert.equal(fees.value, 5000);

const tooMuch = SystemProgram.transfer({ fromPubkey: payer.publicKey, toPubkey: other.publicKey, lamports: 1000 * LAMPORTS_PER_SOL });
await assert.rejects(sendAndConfirmTransaction(connection, new Transaction().add(tooMuch), [payer]), (error) => {
  assert.ok(error instanceof SendTransactionError);
  assert.match(error.message, /custom program error: 0x1/);
  assert.ok(error.logs.some((line) => line.includes("insufficient lamports")));
  return true;
});
const failing = new Transaction().add(ComputeBudgetProgram.setComputeUnitLimit({ units: 50_000 }), tooMuch);
const refusal = await sendAndConfirmTransaction(connection, failing, [payer], { skipPreflight: true }).catch((error) => error);
// web3.js rejects with the error itself, or with one that quotes the status, depending on which of the two it hears of first.
const quoted = refusal instanceof SendTransactionError ? JSON.parse(/Status: \((.*)\)/.exec(refusal.message)[1]).err : refusal;
assert.deepEqual(quoted, { InstructionError: [1, { Custom: 1 }] });

const [createTable, table] = AddressLookupTableProgram.createLookupTable({
  authority: payer.publicKey, payer: payer.publicKey, recentSlot: (await connection.getSlot()) - 1,
});
const extend = AddressLookupTableProgram.extendLookupTable({
  payer: payer.publicKey, authority: payer.publicKey, lookupTable: table, addresses: [other.publicKey],
});
await sendAndConfirmTransaction(connection, new Transaction().add(createTable, extend), [payer]);
await new Promise((done) => connection.onSlotChange(done)); // a table's addresses may be used from the next slot on
const { value: lookup } = await connection.getAddressLookupTable(table);
assert.deepEqual(lookup.state.addresses, [other.publicKey]);
const latest = await connection.getLatestBlockhash();
const versioned = new VersionedTransaction(
  new TransactionMessage({ payerKey: payer.publicKey, recentBlockhash: latest.blockhash, instructions: [transfer] })
    .compileToV0Message([lookup]),
);
versioned.sign([payer]);
const simulated = await connection.simulateTransaction(versioned, { sigVerify: true });
assert.equal(simulated.value.err, null);
const viaTable = await connection.sendTransaction(versioned);
await confirmed(viaTable);
const loaded = await connection.getTransaction(viaTable, { maxSupportedTransactionVersion: 0 });
assert.deepEqual(loaded.meta.loadedAddresses.writable.map(String), [String(other.publicKey)]);
assert.equal(loaded.version, 0);

const mint = Keypair.generate();
const tokens = new PublicKey("TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA");
const initialize = Buffer.concat([Buffer.from([20, 6]), payer.publicKey.toBuffer(), Buffer.from([0])]);
const makeMint = new Transaction().add(
  SystemProgram.createAccount({
    fromPubkey: payer.publicKey, newAccountPubkey: mint.publicKey, space: 82, programId: tokens,
    lamports: await connection.getMinimumBalanceForRentExemption(82),
  }),
  new TransactionInstruction({ programId: tokens, keys: [{ pubkey: mint.publicKey, isSigner: false, isWritable: true }], data: initialize }),
);
await sendAndConfirmTransaction(connection, makeMint, [payer, mint]);
assert.equal((await connection.getTokenSupply(mint.publicKey)).value.decimals, 6);
assert.equal((await connection.getParsedAccountInfo(mint.publicKey)).value.data.parsed.type, "mint");
assert.equal((await connection.getProgramAccounts(tokens, { filters: [{ dataSize: 82 }] })).length, 1);
assert.equal((await connection.getParsedTokenAccountsByOwner(payer.publicKey, { programId: tokens })).value.length, 0);

assert.deepEqual(seen.account, [LAMPORTS_PER_SOL, 2 * LAMPORTS_PER_SOL]);
assert.equal(seen.logs.length, 3); // the transaction that failed is among them
assert.deepEqual([seen.logs[0], seen.logs[2]], [signature, viaTable]);
assert.ok(seen.slots.every((slot, index) => index === 0 || slot > seen.slots[index - 1]));
await connection.removeAccountChangeListener(listeners[0]);
await connection.removeOnLogsListener(listeners[1]);
await connection.removeSlotChangeListener(listeners[2]);
console.log("web3.js is content");
process.exit(0);
