// The engine of story.html: tokenizer, model with its cache, drawing of tokens.
//
// It computes what model.py and nanostories/corpus/tokenizer.py compute; tests/pages/ compares the
// two. One sequence at a time. Nothing here touches the page, which runs the model in a Web Worker
// of this file, and sends it the CALLS at its end.
"use strict";

// ---- Text <-> ids: byte-level BPE (nanostories/corpus/tokenizer.py) ----

class Tokenizer {
  // tokens: strings of bytes, each as the character of that number
  constructor({ tokens, pattern }) {
    this.pattern = new RegExp(pattern, "gu");
    this.tokens = tokens;
    this.ids = new Map(tokens.map((token, id) => [token, id]));
  }

  bytes(id) {
    const token = this.tokens[id] || ""; // the end of text has no bytes
    return Uint8Array.from(token, (character) => character.charCodeAt(0));
  }

  encode(text) {
    const words = text.match(this.pattern) || [];
    const utf8 = new TextEncoder();
    return words.flatMap((word) => {
      const bytes = utf8.encode(word);
      return this.merge(Array.from(bytes, (byte) => String.fromCharCode(byte)));
    });
  }

  // Joins, again and again, the two neighbors whose union comes first in the vocabulary.
  merge(parts) {
    const rank = (i) => this.ids.get(parts[i] + parts[i + 1]) ?? Infinity;
    for (;;) {
      let best = -1;
      let bestRank = Infinity;
      for (let i = 0; i + 1 < parts.length; i++) {
        if (rank(i) < bestRank) {
          best = i;
          bestRank = rank(i);
        }
      }
      if (best < 0) return parts.map((part) => this.ids.get(part));
      parts.splice(best, 2, parts[best] + parts[best + 1]);
    }
  }
}

// ---- All numbers lie in one memory, which multiply.wasm can address ----

function decodeBase64(text) {
  const characters = atob(text);
  const bytes = new Uint8Array(characters.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = characters.charCodeAt(i);
  return bytes;
}

class Memory {
  constructor(bytes, kernel) {
    try {
      const memory = new WebAssembly.Memory({ initial: Math.ceil(bytes / 65536) });
      const module = new WebAssembly.Module(decodeBase64(kernel));
      this.kernel = new WebAssembly.Instance(module, { engine: { memory } }).exports.multiply;
      this.buffer = memory.buffer;
    } catch {
      // A browser without WebAssembly or its SIMD: slower.
      this.buffer = new ArrayBuffer(bytes);
    }
    this.at = 0; // the first free byte
  }

  take(Type, length) {
    const values = new Type(this.buffer, this.at, length);
    this.at = Math.ceil((this.at + values.byteLength) / 16) * 16;
    return values;
  }

  // out = matrix x, for a matrix of int8 with a float32 scale for each row
  multiply(out, { rows, columns, scale, weight }, x) {
    if (this.kernel) {
      const addresses = [out, weight, scale, x].map((array) => array.byteOffset);
      this.kernel(...addresses, rows, columns);
      return;
    }
    for (let row = 0; row < rows; row++) {
      let sum = 0;
      for (let i = 0; i < columns; i++) sum += weight[row * columns + i] * x[i];
      out[row] = sum * scale[row];
    }
  }
}

// ---- The model (model.py) ----

// gelu of nanostories/kernels/gelu.py
function gelu(x) {
  const scale = 2 * Math.sqrt(2 / Math.PI);
  for (let i = 0; i < x.length; i++) {
    x[i] /= 1 + Math.exp(-scale * (x[i] + 0.044715 * x[i] ** 3));
  }
}

function add(x, y) {
  for (let i = 0; i < x.length; i++) x[i] += y[i];
}

// Scores, divided by the temperature -> shares, which sum to 1.
function softmax(scores, temperature = 1) {
  const highest = scores.reduce((most, score) => Math.max(most, score));
  let total = 0;
  for (let i = 0; i < scores.length; i++) {
    scores[i] = Math.exp((scores[i] - highest) / temperature);
    total += scores[i];
  }
  for (let i = 0; i < scores.length; i++) scores[i] /= total;
}

// The places of the n largest values, the largest first.
function largest(values, n) {
  const places = [];
  for (let i = 0; i < values.length; i++) {
    if (places.length === n && !(values[i] > values[places[n - 1]])) continue;
    places.push(i);
    places.sort((a, b) => values[b] - values[a]);
    places.length = Math.min(n, places.length);
  }
  return places;
}

class Model {
  // shapes: [name, rows, columns], or [name, length] of a vector, in the order of the weights
  // (nanostories/pages/story_page.py packs them); means: for each layer, what its heads put out on
  // average, one head after the other
  constructor({ config, shapes, means, kernel }, weights) {
    const { n_embd: C, n_layer, block_size: T, vocab_size } = config;
    const ofRuns = 2 * (3 * T * C * n_layer + T * C); // floats of intactRun and otherRun, below
    const others = vocab_size + 7 * C + T; // of logits; x, y, z and inner; attention
    this.config = config;
    this.means = means;
    // 65536: each array begins at a multiple of 16 bytes
    this.memory = new Memory(weights.length + 4 * (ofRuns + others) + 65536, kernel);
    // The tensors, taken in this order from address 0 on, are views of these bytes.
    new Uint8Array(this.memory.buffer).set(weights);

    const floats = (length) => this.memory.take(Float32Array, length);
    this.tensors = {};
    for (const [name, rows, columns] of shapes) {
      this.tensors[name] = columns ? this.matrix(rows, columns) : floats(rows);
    }
    // What is known of the tokens that were read: with all heads, and with some switched off.
    const emptyRun = () => ({
      off: [], // heads, each as "layer.head"
      ids: [],
      caches: means.map(() => floats(T * 3 * C)), // of each layer: q, k and v of every position
      hidden: floats(T * C), // the head's input, so that any position can be predicted again
    });
    this.intactRun = emptyRun();
    this.otherRun = emptyRun();
    this.logits = floats(vocab_size);
    this.x = floats(C);
    this.y = floats(C);
    this.z = floats(C);
    this.inner = floats(4 * C);
    this.attention = floats(T);
  }

  matrix(rows, columns) {
    const scale = this.memory.take(Float32Array, rows);
    const weight = this.memory.take(Int8Array, rows * columns);
    return { rows, columns, scale, weight };
  }

  // The layer norm with the weights of that name
  norm(out, name, x) {
    const weight = this.tensors[`${name}.weight`];
    const bias = this.tensors[`${name}.bias`];
    let mean = 0;
    let variance = 0;
    for (let i = 0; i < x.length; i++) mean += x[i] / x.length;
    for (let i = 0; i < x.length; i++) variance += (x[i] - mean) ** 2 / x.length;
    const scale = 1 / Math.sqrt(variance + 1e-5);
    for (let i = 0; i < x.length; i++) out[i] = (x[i] - mean) * scale * weight[i] + bias[i];
  }

  // out = matrix x, + bias if there is one
  linear(out, name, x) {
    this.memory.multiply(out, this.tensors[`${name}.weight`], x);
    const bias = this.tensors[`${name}.bias`];
    if (bias) add(out, bias);
  }

  // Brings the cache to these tokens, keeping the common beginning. heads: those that are off, each
  // as "layer.head"; they put out their mean.
  read(ids, heads) {
    this.run = heads.length === 0 ? this.intactRun : this.otherRun;
    if (heads.join() !== this.run.off.join()) Object.assign(this.run, { off: heads, ids: [] });
    const known = this.run.ids;
    let same = 0;
    while (same < Math.min(ids.length, known.length) && ids[same] === known[same]) same++;
    known.length = same;
    for (const id of ids.slice(same)) {
      this.forward(id, known.length);
      known.push(id);
    }
  }

  // The logits of the token at position t, from those before it.
  predict(t) {
    const C = this.config.n_embd;
    this.linear(this.logits, "wte", this.run.hidden.subarray((t - 1) * C, t * C));
  }

  // The probability of each token there.
  shares(temperature) {
    const shares = new Float64Array(this.logits);
    softmax(shares, temperature);
    return shares;
  }

  // uniform: a number in [0, 1), which decides; temperature 0 is greedy
  draw(temperature, uniform) {
    const [best] = largest(this.logits, 1);
    if (temperature === 0) return best;
    const shares = this.shares(temperature);
    let sum = 0;
    for (let id = 0; id < shares.length; id++) {
      sum += shares[id];
      if (sum > uniform) return id;
    }
    return best; // after rounding, the shares may sum to a little less than 1
  }

  // How the token at position t was predicted: in each layer, the lens on `id`, with the n
  // likeliest tokens there; and the attention of each head. Nothing was kept for this when the
  // tokens were read: the one before is computed once more.
  inspect(t, id, n) {
    const seen = { id, n, layers: [], attention: this.means.map(() => []) };
    this.forward(this.run.ids[t - 1], t - 1, seen);
    return seen;
  }

  // What the model would say if a layer with this output were its last (the "logit lens").
  lens(hidden, { id, n }) {
    this.linear(this.logits, "wte", hidden);
    const shares = this.shares(1);
    const share = shares[id];
    const rank = 1 + shares.filter((other) => other > share).length;
    const top = largest(shares, n).map((likely) => ({ id: likely, share: shares[likely] }));
    return { share, rank, top };
  }

  // The token at position t, through all layers, into `hidden`. seen: takes what each layer does.
  forward(id, t, seen = null) {
    const C = this.config.n_embd;
    const { x, y, z, inner } = this;
    this.embed(id, t);
    this.run.caches.forEach((cache, layer) => {
      const block = `blocks.${layer}`;
      this.norm(z, `${block}.ln_1`, x);
      this.linear(cache.subarray(3 * C * t, 3 * C * (t + 1)), `${block}.qkv`, z);
      this.mix(layer, t, seen);
      this.linear(z, `${block}.attention_out`, y);
      add(x, z);
      this.norm(z, `${block}.ln_2`, x);
      this.linear(inner, `${block}.mlp_in`, z);
      gelu(inner);
      this.linear(z, `${block}.mlp_out`, inner);
      add(x, z);
      if (seen) {
        this.norm(z, "ln_f", x);
        seen.layers.push(this.lens(z, seen));
      }
    });
    this.norm(this.run.hidden.subarray(t * C, (t + 1) * C), "ln_f", x);
  }

  // x = the embedding of the token + that of its position
  embed(id, t) {
    const C = this.config.n_embd;
    const token = this.tensors["wte.weight"];
    const position = this.tensors["wpe.weight"];
    for (let i = 0; i < C; i++) {
      const ofToken = token.weight[id * C + i] * token.scale[id];
      this.x[i] = ofToken + position.weight[t * C + i] * position.scale[t];
    }
  }

  // y = the values that each head attends to, or its mean if it is off
  mix(layer, t, seen) {
    const { n_embd: C, n_head: H } = this.config;
    const D = C / H;
    const cache = this.run.caches[layer];
    this.y.fill(0);
    for (let head = 0; head < H; head++) {
      const first = this.attend(layer, head, t);
      if (seen) seen.attention[layer].push(this.attention.slice(0, t + 1));
      if (this.run.off.includes(`${layer}.${head}`)) {
        for (let i = head * D; i < (head + 1) * D; i++) this.y[i] = this.means[layer][i];
        continue;
      }
      for (let s = first; s <= t; s++) {
        const v = 3 * C * s + 2 * C + head * D;
        for (let i = 0; i < D; i++) this.y[head * D + i] += this.attention[s] * cache[v + i];
      }
    }
  }

  // Attention of this head at position t: this.attention[0 .. t], which sum to 1 -> the first that
  // the head can see.
  attend(layer, head, t) {
    const { n_embd: C, n_head: H, block_size, window_size, scale_attention } = this.config;
    const D = C / H;
    const cache = this.run.caches[layer];
    const q = 3 * C * t + head * D;
    const window = layer % 2 ? window_size : block_size;
    const first = Math.max(0, t + 1 - window);
    const scale = scale_attention ? D ** -0.5 : 1;
    for (let s = first; s <= t; s++) {
      const k = 3 * C * s + C + head * D;
      let sum = 0;
      for (let i = 0; i < D; i++) sum += cache[q + i] * cache[k + i];
      this.attention[s] = sum * scale;
    }
    softmax(this.attention.subarray(first, t + 1));
    this.attention.fill(0, 0, first);
    return first;
  }
}

// ---- Chance that can be repeated ----

// Any integer -> one of 32 bits that looks random (the finalizer of MurmurHash3).
function scramble(integer) {
  let bits = integer ^ (integer >>> 16);
  bits = Math.imul(bits, 0x85ebca6b);
  bits ^= bits >>> 13;
  bits = Math.imul(bits, 0xc2b2ae35);
  return bits ^ (bits >>> 16);
}

// What decides token t that the model adds to the story of this number, in [0, 1). It depends on
// nothing else, so that the same number tells the same story.
function chance(number, t) {
  return (scramble(scramble(number + 1) + t) >>> 0) / 2 ** 32;
}

// ---- Calls of the page ----

let model;
const CALLS = {
  load(parts, weights) {
    model = new Model(parts, decodeBase64(weights));
  },

  // One more token after these: given of them are the reader's, the others of the story of this
  // number, told with these heads off.
  next(ids, { temperature, number, given, off }) {
    model.read(ids, off);
    model.predict(ids.length);
    return model.draw(temperature, chance(number, ids.length - given));
  },

  // How the token at position i, or `id` in its place, is predicted (Model.inspect).
  inspect(ids, i, off = [], id = ids[i], n = 10) {
    model.read(ids, off);
    const { layers, attention } = model.inspect(i, id, n);
    return { layers, attention, share: layers.at(-1).share };
  },

  // The probability of each token but the first, from those before it.
  shares(ids, off) {
    model.read(ids, off);
    return ids.slice(1).map((id, i) => {
      model.predict(i + 1);
      return model.shares(1)[id];
    });
  },
};

// Where there is no page, this is the worker.
if (typeof document === "undefined") {
  globalThis.onmessage = ({ data: { call, args } }) => {
    try {
      postMessage({ result: CALLS[call](...args) });
    } catch (error) {
      postMessage({ error: error.message }); // mostly: too little memory
    }
  };
}
