// A stock endpoint of @number0/iroh: dials a peer of which it knows only key and relay, and compares the echo.
// node iroh_node_client.cjs RELAY_URL PEER_HEX
'use strict';
const { Endpoint, EndpointAddr, EndpointId, RelayMap, RelayMode, presetMinimal } = require('@number0/iroh');

const [, , url, peer] = process.argv;
const bytes = (text) => [...Buffer.from(text)];

async function main() {
  const relays = RelayMap.empty();
  relays.insert({ url });
  const builder = Endpoint.builder();
  presetMinimal(builder);
  builder.bindAddr('127.0.0.1:0');
  builder.bindAddr('[::1]:0');
  builder.relayMode(RelayMode.custom(relays));
  const endpoint = await builder.bind();
  await endpoint.online();
  const target = new EndpointAddr(EndpointId.fromBytes([...Buffer.from(peer, 'hex')]), url, []);
  const connection = await endpoint.connect(target, bytes('relay-test/1'));
  const stream = await connection.openBi();
  const payload = Array.from({ length: 100000 }, (_, place) => place % 251);
  await stream.send.writeAll(payload);
  await stream.send.finish();
  const echo = await stream.recv.readToEnd(1000000);
  if (Buffer.compare(Buffer.from(echo), Buffer.from(payload)) !== 0) throw new Error('the echo differs');
  connection.close(0n, []);
  await endpoint.close();
  console.log('node is content');
}

main().then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });
