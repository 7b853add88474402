// The engine of story.html: tokenizer, model with its cache, drawing of tokens. The page runs it in a Web Worker.
//
// It computes what model.py and nanostories/corpus/tokenizer.py compute; tests/pages/ compares the two in a browser. One sequence at
// a time. Nothing here touches the page: it answers the calls at the end of this file.
"use strict";

// ---- Text <-> ids: byte-level BPE (nanostories/corpus/tokenizer.py) ----

class Tokenizer {
  // The vocabulary of nanostories/corpus/tokenizer.py. Here a token is a string of its bytes, each as the character of that number.
  constructor({ tokens, pattern }) {
    const byteOf = {}, printable = (byte) => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
    for (let byte = 0, others = 256; byte < 256; byte++) byteOf[String.fromCharCode(printable(byte) ? byte : others++)] = byte;
    const unspelled = (token) => String.fromCharCode(...Array.from(token, (character) => byteOf[character]));
    this.pattern = new RegExp(pattern, "gu");
    this.tokens = tokens.map(unspelled);
    this.ids = new Map(this.tokens.map((token, id) => [token, id]));
  }

  bytes(id) {
    return Uint8Array.from(this.tokens[id] || "", (character) => character.charCodeAt(0));  // end of text: none
  }

  encode(text) {
    const words = text.match(this.pattern) || [], utf8 = new TextEncoder();
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

// ---- Weights (nanostories/pages/story_page.py packs them) and all other numbers, in one memory that multiply.wasm can address ----

function decodeBase64(text) {
  const characters = atob(text), bytes = new Uint8Array(characters.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = characters.charCodeAt(i);
  return bytes;
}

class Memory {
  constructor(bytes, kernel) {
    const memory = new WebAssembly.Memory({ initial: Math.ceil(bytes / 65536) });
    const module = new WebAssembly.Module(decodeBase64(kernel));
    this.kernel = new WebAssembly.Instance(module, { engine: { memory } }).exports.multiply;
    this.buffer = memory.buffer;
    this.at = 0;
  }

  take(Type, length) {
    const values = new Type(this.buffer, this.at, length);
    this.at = Math.ceil((this.at + values.byteLength) / 16) * 16;
    return values;
  }
}

// ---- The model (model.py) ----

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
  // shapes: [name, rows, columns], or [name, length] of a vector, in the order of the weights
  constructor(config, shapes, weights, kernel) {
    const { n_embd: C, n_layer, block_size: T, vocab_size } = this.config = config;
    const others = 4 * (T * C * (3 * n_layer + 1) + vocab_size + 7 * C + T) + 65536;
    this.memory = new Memory(weights.length + others, kernel);
    new Uint8Array(this.memory.buffer).set(weights);
    const floats = (length) => this.memory.take(Float32Array, length);
    this.tensors = Object.fromEntries(shapes.map(([name, rows, columns]) =>
      [name, columns ? { rows, columns, scale: floats(rows), weight: this.memory.take(Int8Array, rows * columns) } : floats(rows)]));
    this.blocks = Array.from({ length: n_layer }, (_, layer) => {
      const pair = (name) => ["weight", "bias"].map((part) => this.tensors[`blocks.${layer}.${name}.${part}`]);
      return {
        norm1: pair("ln_1"), qkv: pair("qkv"), attentionOut: pair("attention_out"),
        norm2: pair("ln_2"), mlpIn: pair("mlp_in"), mlpOut: pair("mlp_out"),
        cache: floats(T * 3 * C),  // q, k and v of every position
      };
    });
    this.hidden = floats(T * C);  // the head's input, kept so that any position can be predicted again
    this.logits = floats(vocab_size);
    [this.x, this.y, this.z, this.inner, this.attention] = [C, C, C, 4 * C, T].map(floats);
    this.ids = [];  // the tokens in the cache
  }

  // out = matrix x + bias
  multiply(out, [{ rows, columns, scale, weight }, bias], x) {
    this.memory.kernel(out.byteOffset, weight.byteOffset, scale.byteOffset, x.byteOffset, rows, columns);
    if (bias) add(out, bias);
  }

  // Brings the cache to these tokens, keeping the common beginning.
  read(ids) {
    let same = 0;
    while (same < Math.min(ids.length, this.ids.length) && ids[same] === this.ids[same]) same++;
    this.ids.length = same;
    for (const id of ids.slice(same)) this.ids.push(this.forward(id, this.ids.length));
  }

  // Predicts the token at position t from those before it: fills logits, largest.
  predict(t) {
    const C = this.config.n_embd, { logits } = this;
    this.multiply(logits, [this.tensors["wte.weight"]], this.hidden.subarray((t - 1) * C, t * C));
    this.largest = logits[0];
    for (let i = 1; i < logits.length; i++) if (logits[i] > this.largest) this.largest = logits[i];
  }

  // The probability of each token there.
  shares(temperature) {
    const { logits, largest } = this, shares = new Float64Array(logits.length);
    let total = 0;
    for (let i = 0; i < shares.length; i++) total += shares[i] = Math.exp((logits[i] - largest) / temperature);
    for (let i = 0; i < shares.length; i++) shares[i] /= total;
    return shares;
  }

  // uniform: a number in [0, 1), which decides; temperature 0 is greedy
  draw(temperature, uniform) {
    const likeliest = this.logits.indexOf(this.largest);
    if (!temperature) return likeliest;
    const shares = this.shares(temperature);
    for (let id = 0, sum = 0; id < shares.length; id++) if ((sum += shares[id]) > uniform) return id;
    return likeliest;  // after rounding, the shares may sum to a little less than 1
  }

  forward(id, t) {
    const { n_embd: C, n_head: H } = this.config, { x, y, z, inner } = this, D = C / H;
    const wte = this.tensors["wte.weight"], wpe = this.tensors["wpe.weight"];
    for (let i = 0; i < C; i++) x[i] = wte.weight[id * C + i] * wte.scale[id] + wpe.weight[t * C + i] * wpe.scale[t];
    this.blocks.forEach((block, layer) => {
      layerNorm(z, x, ...block.norm1);
      this.multiply(block.cache.subarray(3 * C * t, 3 * C * (t + 1)), block.qkv, z);
      y.fill(0);
      for (let head = 0; head < H; head++) {
        for (let s = this.attend(layer, head, t); s <= t; s++) {
          const share = this.attention[s], v = 3 * C * s + 2 * C + head * D;
          for (let i = 0; i < D; i++) y[head * D + i] += share * block.cache[v + i];
        }
      }
      this.multiply(z, block.attentionOut, y);
      add(x, z);
      layerNorm(z, x, ...block.norm2);
      this.multiply(inner, block.mlpIn, z);
      gelu(inner);
      this.multiply(z, block.mlpOut, inner);
      add(x, z);
    });
    layerNorm(this.hidden.subarray(t * C, (t + 1) * C), x, this.tensors["ln_f.weight"], this.tensors["ln_f.bias"]);
    return id;
  }

  // Attention of this head at position t: this.attention[first .. t], which sum to 1 -> first.
  attend(layer, head, t) {
    const { n_embd: C, n_head: H, block_size, window_size, scale_attention } = this.config;
    const shares = this.attention, { cache } = this.blocks[layer], D = C / H, q = 3 * C * t + head * D;
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

// ---- Calls of the page ----

let tokenizer, model;
const CALLS = {
  load({ config, shapes, vocabulary, kernel }, weights) {
    tokenizer = new Tokenizer(vocabulary);
    model = new Model(config, shapes, decodeBase64(weights), kernel);
  },
  encode: (text) => tokenizer.encode(text),
  bytes: (ids) => ids.map((id) => tokenizer.bytes(id)),
  read: (ids) => model.read(ids),
  // one more token after these
  next(ids, temperature, uniform) {
    model.read(ids);
    model.predict(ids.length);
    const id = model.draw(temperature, uniform);
    return { id, bytes: tokenizer.bytes(id) };
  },
  // the probability of the token at position t of these, and the n likeliest tokens there
  likeliest(ids, t, n) {
    model.read(ids);
    model.predict(t);
    const shares = model.shares(1), order = [...shares.keys()].sort((a, b) => shares[b] - shares[a]);
    return { own: shares[ids[t]], tokens: order.slice(0, n).map((id) => ({ id, share: shares[id], bytes: tokenizer.bytes(id) })) };
  },
};

onmessage = ({ data: { number, call, args } }) => {
  try {
    postMessage({ number, result: CALLS[call](...args) });
  } catch (error) {  // mostly too little memory, or a browser without WebAssembly's SIMD; the page shows the message
    postMessage({ number, error: error.message });
  }
};
