// The engine of story.html: tokenizer, model with its cache, sampling; the page runs it in a Web Worker.
//
// It computes what model.py and corpus/tokenizer.py compute; tests/browser/ compares the two in a browser. One sequence
// at a time. Nothing here touches the page: it answers the calls at the end of this file.
"use strict";

// ---- Text <-> ids: byte-level BPE (corpus/tokenizer.py) ----

// GPT-2's split into words. \s is spelled out, as JavaScript's own \s has other characters than tiktoken's.
const SPLIT = new RegExp(
  String.raw`'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+` +
  String.raw`|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+`, "gu");

class Tokenizer {
  // vocabulary: as spell() of browser/pack_model.py writes it. Here a token is a string of its bytes, each as the
  // character of that number.
  constructor(vocabulary) {
    const byteOf = {}, printable = (byte) => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
    for (let byte = 0, others = 256; byte < 256; byte++) byteOf[String.fromCharCode(printable(byte) ? byte : others++)] = byte;
    byteOf[" "] = 32;
    const unspelled = (token) => String.fromCharCode(...Array.from(token, (character) => byteOf[character]));
    this.tokens = vocabulary.split("\x7f").map(unspelled);
    this.ids = new Map(this.tokens.map((token, id) => [token, id]));
    this.endOfText = this.tokens.length;
  }

  bytes(id) {
    return Uint8Array.from(this.tokens[id] || "", (character) => character.charCodeAt(0));  // of the end of text: none
  }

  encode(text) {
    const words = text.match(SPLIT) || [], utf8 = new TextEncoder();
    return words.flatMap((word) => this.merge(Array.from(utf8.encode(word), (byte) => String.fromCharCode(byte))));
  }

  // Joins, again and again, the two neighbors whose union comes first in the vocabulary.
  merge(parts) {
    const rank = (i) => this.ids.get(parts[i] + parts[i + 1]) ?? Infinity;
    const ranks = parts.map((_, i) => (i + 1 < parts.length ? rank(i) : Infinity));
    for (;;) {
      let best = 0;
      for (let i = 1; i < ranks.length; i++) if (ranks[i] < ranks[best]) best = i;
      if (ranks[best] === Infinity) return parts.map((part) => this.ids.get(part));
      parts.splice(best, 2, parts[best] + parts[best + 1]);
      ranks.splice(best, 1);
      for (const i of [best - 1, best]) if (i >= 0) ranks[i] = i + 1 < parts.length ? rank(i) : Infinity;
    }
  }
}

// ---- Weights (browser/quantize.py packs them) ----

function decodeBase64(text) {
  const characters = atob(text), bytes = new Uint8Array(characters.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = characters.charCodeAt(i);
  return bytes.buffer;
}

function fromFloat16(bits) {
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = (bits & 1023) / 1024;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction) : 2 ** -14 * fraction);
}

function fromBfloat16(bits) {  // the upper half of a float32
  return new Float32Array(Uint32Array.from(bits, (upper) => upper << 16).buffer);
}

// All numbers of the engine, side by side in one memory, so that multiply.wasm can reach them by their addresses.
class Numbers {
  constructor(bytes, kernels) {
    this.at = 16;
    try {
      const memory = new WebAssembly.Memory({ initial: Math.ceil(bytes / 65536) });
      this.kernels = new WebAssembly.Instance(new WebAssembly.Module(decodeBase64(kernels)), { engine: { memory } }).exports;
      this.buffer = memory.buffer;
    } catch {  // a browser without WebAssembly, or without its SIMD: JavaScript multiplies, a few times slower
      this.buffer = new ArrayBuffer(bytes);
    }
  }

  take(Type, length) {
    const values = new Type(this.buffer, this.at, length);
    this.at = Math.ceil((this.at + values.byteLength) / 16) * 16;
    return values;
  }

  keep(values) {
    const kept = this.take(values.constructor, values.length);
    kept.set(values);
    return kept;
  }
}

function bytesNeeded({ n_embd: C, n_layer, block_size: T, vocab_size }, dtype, shapes) {
  const weights = shapes.map(([, rows, columns = 0]) => rows * (4 + columns * (dtype === "int8" ? 1 : 4)) + 64);
  return weights.reduce((a, b) => a + b, 0) + 4 * (T * C * (3 * n_layer + 1) + vocab_size + 7 * C) + 65536;
}

// {name: tensor}. A vector is a Float32Array; a matrix has rows, columns, weight by row, and the scale of each row.
function unpack(buffer, dtype, shapes, numbers) {
  const tensors = {};
  let at = 0;
  const next = (Type, length) => {
    const values = new Type(buffer, at, length);
    at += Math.ceil(values.byteLength / 4) * 4;
    return values;
  };
  for (const [name, rows, columns] of shapes) {
    if (!columns) {
      tensors[name] = numbers.keep(next(Float32Array, rows));
      continue;
    }
    const scale = numbers.keep(dtype === "int8" ? fromBfloat16(next(Uint16Array, rows)) : new Float32Array(rows).fill(1));
    const stored = next({ int8: Int8Array, float16: Uint16Array, float32: Float32Array }[dtype], rows * columns);
    const weight = numbers.keep(dtype === "float16" ? Float32Array.from(stored, fromFloat16) : stored);
    const kernel = columns % 16 ? undefined : numbers.kernels?.[dtype === "int8" ? "int8" : "float32"];
    tensors[name] = { rows, columns, scale, weight, kernel };
  }
  return tensors;
}

// ---- The model (model.py) ----

// out = matrix x + bias
function multiply(out, [{ rows, columns, scale, weight, kernel }, bias], x) {
  if (kernel) kernel(out.byteOffset, weight.byteOffset, scale.byteOffset, x.byteOffset, rows, columns);
  else multiplyRows(out, rows, columns, scale, weight, x);
  if (bias) add(out, bias);
}

// What multiply.wat does; four rows at a time, so that four sums are under way at once.
function multiplyRows(out, rows, columns, scale, weight, x) {
  let row = 0;
  for (; row + 4 <= rows; row += 4) {
    const r0 = row * columns, r1 = r0 + columns, r2 = r1 + columns, r3 = r2 + columns;
    let a = 0, b = 0, c = 0, d = 0;
    for (let i = 0; i < columns; i++) {
      const value = x[i];
      a += weight[r0 + i] * value;
      b += weight[r1 + i] * value;
      c += weight[r2 + i] * value;
      d += weight[r3 + i] * value;
    }
    out[row] = a * scale[row];
    out[row + 1] = b * scale[row + 1];
    out[row + 2] = c * scale[row + 2];
    out[row + 3] = d * scale[row + 3];
  }
  for (; row < rows; row++) {
    let sum = 0;
    for (let i = 0; i < columns; i++) sum += weight[row * columns + i] * x[i];
    out[row] = sum * scale[row];
  }
}

function layerNorm(out, x, weight, bias) {
  let mean = 0, variance = 0;
  for (let i = 0; i < x.length; i++) mean += x[i] / x.length;
  for (let i = 0; i < x.length; i++) variance += (x[i] - mean) ** 2 / x.length;
  const scale = 1 / Math.sqrt(variance + 1e-5);
  for (let i = 0; i < x.length; i++) out[i] = (x[i] - mean) * scale * weight[i] + bias[i];
}

function gelu(x) {  // gelu_new of model.py
  const scale = 2 * Math.sqrt(2 / Math.PI);
  for (let i = 0; i < x.length; i++) x[i] /= 1 + Math.exp(-scale * (x[i] + 0.044715 * x[i] ** 3));
}

function add(x, y) {
  for (let i = 0; i < x.length; i++) x[i] += y[i];
}

class Model {
  constructor(config, tensors, numbers) {
    const floats = (length) => numbers.take(Float32Array, length);
    const { n_embd: C, n_layer, block_size: T, vocab_size } = this.config = config;
    this.tensors = tensors;
    this.blocks = Array.from({ length: n_layer }, (_, layer) => {
      const of = (name) => ["weight", "bias"].map((part) => tensors[`blocks.${layer}.${name}.${part}`]);
      return {
        norm1: of("ln_1"), qkv: of("qkv"), attentionOut: of("attention_out"),
        norm2: of("ln_2"), mlpIn: of("mlp_in"), mlpOut: of("mlp_out"),
        cache: floats(T * 3 * C),  // q, k and v of every position; q to show later where a head looked
      };
    });
    this.hidden = floats(T * C);  // what the head sees, so that any position can be asked again
    this.ids = [];      // the tokens in the cache
    this.losses = [];   // of each, in nats: how unlikely it was; of the first: null
    this.logits = floats(vocab_size);
    this.logitsOf = -1; // the position that they follow
    this.logSum = 0;    // the logarithm of the sum of their exponentials
    this.shares = new Float64Array(T);
    [this.x, this.y, this.z, this.inner] = [C, C, C, 4 * C].map(floats);
  }

  // Brings the cache to these tokens, keeping the common beginning -> the loss of each.
  read(ids) {
    let same = 0;
    while (same < Math.min(ids.length, this.ids.length) && ids[same] === this.ids[same]) same++;
    this.ids.length = this.losses.length = same;
    if (this.logitsOf >= same) this.logitsOf = -1;
    for (const id of ids.slice(same)) {
      const t = this.ids.length;
      this.losses.push(t ? this.loss(t, id) : null);
      this.forward(id, t);
      this.ids.push(id);
    }
    return this.losses;
  }

  // Logits of the token at position t, given those before it.
  predict(t) {
    const C = this.config.n_embd, { logits } = this;
    if (this.logitsOf === t - 1) return logits;
    multiply(logits, [this.tensors["wte.weight"]], this.hidden.subarray((t - 1) * C, t * C));
    const largest = maximum(logits);
    let total = 0;
    for (let i = 0; i < logits.length; i++) total += Math.exp(logits[i] - largest);
    this.logSum = Math.log(total) + largest;
    this.logitsOf = t - 1;
    return logits;
  }

  // How unlikely this token is at position t, in nats.
  loss(t, id) {
    const logits = this.predict(t);
    return this.logSum - logits[id];
  }

  forward(id, t) {
    const { n_embd: C, n_head: H } = this.config, { x, y, z, inner } = this, D = C / H;
    const wte = this.tensors["wte.weight"], wpe = this.tensors["wpe.weight"];
    for (let i = 0; i < C; i++) x[i] = wte.weight[id * C + i] * wte.scale[id] + wpe.weight[t * C + i] * wpe.scale[t];
    this.blocks.forEach((block, layer) => {
      layerNorm(z, x, ...block.norm1);
      multiply(block.cache.subarray(3 * C * t, 3 * C * (t + 1)), block.qkv, z);
      y.fill(0);
      for (let head = 0; head < H; head++) {
        for (let s = this.attend(layer, head, t); s <= t; s++) {
          const share = this.shares[s], v = 3 * C * s + 2 * C + head * D;
          for (let i = 0; i < D; i++) y[head * D + i] += share * block.cache[v + i];
        }
      }
      multiply(z, block.attentionOut, y);
      add(x, z);
      layerNorm(z, x, ...block.norm2);
      multiply(inner, block.mlpIn, z);
      gelu(inner);
      multiply(z, block.mlpOut, inner);
      add(x, z);
    });
    layerNorm(this.hidden.subarray(t * C, (t + 1) * C), x, this.tensors["ln_f.weight"], this.tensors["ln_f.bias"]);
  }

  // Where this head looks from position t: this.shares[first .. t], which sum to 1 -> first.
  attend(layer, head, t) {
    const { n_embd: C, n_head: H, block_size, window_size, scale_attention } = this.config;
    const { shares } = this, { cache } = this.blocks[layer], D = C / H, q = 3 * C * t + head * D;
    const first = Math.max(0, t + 1 - (layer % 2 ? window_size : block_size)), scale = scale_attention ? D ** -0.5 : 1;
    let largest = -Infinity, total = 0;
    for (let s = first; s <= t; s++) {
      const k = 3 * C * s + C + head * D;
      let sum = 0;
      for (let i = 0; i < D; i++) sum += cache[q + i] * cache[k + i];
      shares[s] = sum * scale;
      largest = Math.max(largest, shares[s]);
    }
    for (let s = first; s <= t; s++) total += shares[s] = Math.exp(shares[s] - largest);
    for (let s = first; s <= t; s++) shares[s] /= total;
    return first;
  }
}

// ---- From logits to a token (draw in generation/generation_loop.py) ----

function maximum(values) {
  let largest = values[0];
  for (let i = 1; i < values.length; i++) if (values[i] > largest) largest = values[i];
  return largest;
}

// Shares of the logits that are at least `least`; the others have none.
function softmax(logits, temperature = 1, least = -Infinity) {
  const largest = maximum(logits), shares = new Float64Array(logits.length);
  let total = 0;
  for (let i = 0; i < shares.length; i++) {
    if (logits[i] >= least) total += shares[i] = Math.exp((logits[i] - largest) / temperature);
  }
  for (let i = 0; i < shares.length; i++) shares[i] /= total;
  return shares;
}

// The n largest values, largest first, in one pass; now and then it drops what is below n others.
function largestValues(values, n) {
  const kept = new Float64Array(Math.min(4 * n, values.length));
  let count = 0, least = -Infinity;
  for (let i = 0; i < values.length; i++) {
    if (values[i] <= least) continue;
    if (count === kept.length) {
      kept.sort().copyWithin(0, count - n);
      count = n;
      least = kept[0];
    }
    kept[count++] = values[i];
  }
  return kept.subarray(0, count).sort().reverse().subarray(0, n);
}

// The smallest of the largest shares, taken until they sum to `enough`.
function leastOf(shares, enough) {
  for (let n = 256; ; n *= 16) {
    const largest = largestValues(shares, n);
    let i = 0;
    for (let total = 0; i < largest.length && total < enough; i++) total += largest[i];
    if (i < n) return largest[i - 1];
  }
}

// uniform: a number in [0, 1), which decides; temperature 0 is greedy, top_k 0 and top_p 1 leave nothing out
function draw(logits, { temperature, top_k, top_p }, uniform) {
  if (!temperature) return logits.indexOf(maximum(logits));
  const shares = softmax(logits, temperature, top_k ? largestValues(logits, top_k).at(-1) : -Infinity);
  const least = top_p < 1 ? leastOf(shares, top_p) : 0;
  let total = 1, last = 0;
  if (least) total = shares.reduce((sum, share) => (share < least ? sum : sum + share), 0);
  for (let id = 0, sum = 0; id < shares.length; id++) {
    if (shares[id] < least || !shares[id]) continue;
    last = id;
    if ((sum += shares[id]) > uniform * total) break;
  }
  return last;
}

function likeliest(logits, n) {
  const shares = softmax(logits), least = largestValues(logits, n).at(-1), ids = [];
  for (let id = 0; id < logits.length; id++) if (logits[id] >= least) ids.push(id);
  return ids.sort((a, b) => logits[b] - logits[a]).slice(0, n).map((id) => ({ id, share: shares[id] }));
}

// ---- What the page may ask ----

let tokenizer, model;
const CALLS = {
  load({ config, dtype, shapes, vocabulary, kernels }, weights) {
    tokenizer = new Tokenizer(vocabulary);
    const numbers = new Numbers(bytesNeeded(config, dtype, shapes), kernels);
    model = new Model(config, unpack(decodeBase64(weights), dtype, shapes, numbers), numbers);
    return numbers.kernels ? "WebAssembly" : "JavaScript";
  },
  encode: (text) => tokenizer.encode(text),
  bytes: (ids) => ids.map((id) => tokenizer.bytes(id)),
  read: (ids) => model.read(ids),
  // one more token after these
  next(ids, settings, uniform) {
    model.read(ids);
    const id = draw(model.predict(ids.length), settings, uniform);
    return { id, loss: model.loss(ids.length, id), bytes: tokenizer.bytes(id) };
  },
  // the n likeliest tokens at position t of these
  likeliest(ids, t, n) {
    model.read(ids);
    return likeliest(model.predict(t), n).map((each) => ({ ...each, bytes: tokenizer.bytes(each.id) }));
  },
  attention(ids, layer, head, t) {
    model.read(ids);
    const first = model.attend(layer, head, t);
    return Array.from(ids, (_, s) => (s < first || s > t ? 0 : model.shares[s]));
  },
};

onmessage = ({ data: { number, call, args } }) => {
  try {
    postMessage({ number, result: CALLS[call](...args) });
  } catch (error) {  // mostly too little memory; the page shows the message
    postMessage({ number, error: error.message });
  }
};
