// SHA-256 of bytes that come in pieces: crypto.subtle wants all of them at once.

const BLOCK = 64;
const CONSTANTS = new Int32Array(64);
const BEGIN = new Int32Array(8);
const primes = [];
for (let n = 2; primes.length < 64; ++n) if (primes.every((prime) => n % prime)) primes.push(n);
// The first 32 bits behind the point of the roots of the first primes.
const bits = (root) => (root - Math.floor(root)) * 2 ** 32;
primes.forEach((prime, i) => {
  CONSTANTS[i] = bits(Math.cbrt(prime));
  if (i < 8) BEGIN[i] = bits(Math.sqrt(prime));
});

const turn = (word, by) => (word >>> by) | (word << (32 - by));

export class Sha256 {
  #state = BEGIN.slice();
  #words = new Int32Array(64);
  // What is not yet a block.
  #rest = new Uint8Array(BLOCK);
  #length = 0;

  update(bytes) {
    const kept = this.#length % BLOCK;
    this.#length += bytes.length;
    let at = 0;
    if (kept > 0) {
      at = Math.min(BLOCK - kept, bytes.length);
      this.#rest.set(bytes.subarray(0, at), kept);
      if (kept + at < BLOCK) return this;
      this.#take(this.#rest, 0);
    }
    for (; at + BLOCK <= bytes.length; at += BLOCK) this.#take(bytes, at);
    this.#rest.set(bytes.subarray(at));
    return this;
  }

  // In hexadecimal; nothing can be added after it.
  digest() {
    const size = this.#length;
    const padding = new Uint8Array(BLOCK + 8 - ((size + 8) % BLOCK));
    padding[0] = 0x80;
    const view = new DataView(padding.buffer, padding.length - 8);
    view.setUint32(0, Math.floor(size / 2 ** 29));
    view.setUint32(4, (size * 8) % 2 ** 32);
    this.update(padding);
    return Array.from(this.#state, (word) => (word >>> 0).toString(16).padStart(8, '0')).join('');
  }

  #take(bytes, at) {
    const w = this.#words;
    const state = this.#state;
    for (let i = 0; i < 16; ++i, at += 4) {
      w[i] = (bytes[at] << 24) | (bytes[at + 1] << 16) | (bytes[at + 2] << 8) | bytes[at + 3];
    }
    for (let i = 16; i < 64; ++i) {
      const early = w[i - 15];
      const late = w[i - 2];
      w[i] = (w[i - 16] + (turn(early, 7) ^ turn(early, 18) ^ (early >>> 3)) + w[i - 7] +
        (turn(late, 17) ^ turn(late, 19) ^ (late >>> 10))) | 0;
    }
    // Eight variables, not an array: this loop is run for every 64 bytes of a file.
    let a = state[0];
    let b = state[1];
    let c = state[2];
    let d = state[3];
    let e = state[4];
    let f = state[5];
    let g = state[6];
    let h = state[7];
    for (let i = 0; i < 64; ++i) {
      const one = (h + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & f) ^ (~e & g)) + CONSTANTS[i] + w[i]) | 0;
      const two = ((turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      h = g;
      g = f;
      f = e;
      e = (d + one) | 0;
      d = c;
      c = b;
      b = a;
      a = (one + two) | 0;
    }
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
    state[4] += e;
    state[5] += f;
    state[6] += g;
    state[7] += h;
  }
}
