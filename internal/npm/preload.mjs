// Loaded into Node before a program from npm, which stays as its authors published it.
import fs from 'node:fs';
import net from 'node:net';

// The program ends with the process that started it, which holds the other end of this pipe.
process.stdin.on('end', () => process.exit(1)).on('error', () => process.exit(1)).resume();
process.stdin.unref();

// A server listens on a free port of loopback, whichever it asks for, and that port is written to descriptor 3.
if (process.env.LEGWORK_PORT_TO_FD3) {
  const listen = net.Server.prototype.listen;
  net.Server.prototype.listen = function (...args) {
    this.once('listening', () => fs.writeSync(3, `${this.address().port}\n`));
    return listen.call(this, { port: 0, host: '127.0.0.1' }, args.findLast((arg) => typeof arg === 'function'));
  };
}
