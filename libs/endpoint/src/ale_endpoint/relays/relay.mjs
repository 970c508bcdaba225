// Listens on a loopback port and hands each connection to a Unix socket: node relay.mjs SOCKET [PORT]
// For a sandbox without a network whose folders hold the socket of a model endpoint. Needs Node 18 or newer.
// An end of file is passed on in its own direction alone; SIGTERM ends the relay and every connection.
import net from "node:net";

const [path, given] = process.argv.slice(2);
const port = Number(given ?? 8600);

function fail(sentence) {
  console.error(`relay: ${sentence}`);
  process.exit(1);
}

function relay(near) {
  const far = net.connect({ path, allowHalfOpen: true });
  for (const [one, other] of [[near, far], [far, near]]) {
    one.on("error", () => other.destroy());
    one.pipe(other);
  }
}

if (!path || !Number.isInteger(port)) fail("usage: relay.mjs SOCKET [PORT]");
const probe = net.connect({ path });
probe.on("error", (error) =>
  fail(`No server answers at the Unix socket ${path} (${error.code}); mount its folder into the sandbox.`));
probe.on("connect", () => {
  probe.destroy();
  const server = net.createServer({ allowHalfOpen: true, noDelay: true }, relay);
  server.on("error", (error) => fail(`The port ${port} of 127.0.0.1 cannot be had (${error.code}); name another one.`));
  server.listen({ host: "127.0.0.1", port, backlog: 1024 }, () =>
    console.log(`listening on http://127.0.0.1:${port} for ${path}`));
});
for (const signal of ["SIGTERM", "SIGINT"]) process.on(signal, () => process.exit(0));
