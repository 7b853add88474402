// Many stories against a few texts: the overlap of k-grams of every pair, and the longest match from every word on.
// overlap.py makes the tables that are read here, and compiles and calls it.
#include <cstdint>
#include <cstring>
#include <vector>

constexpr uint64_t NONE = ~uint64_t(0), MIX = 0x9E3779B97F4A7C15u;

static inline uint64_t first_slot(uint64_t key) { return key * MIX >> 32; }

struct Texts {
    const int32_t *classes;  // id of a word of the stories -> its class: words of one class are the same
    const int32_t *table;    // class -> word of the texts, or -1
    const int32_t *words;    // all texts in a row, with -1 behind each
    long n_texts, k, by_set, leave_out_own;
    // The trie of the texts' suffixes: node 0 is its root, and 1 + w the node that word w leads to from there.
    const uint64_t *keys;  // of its edges: node << 32 | word, NONE where the table is free
    const int32_t *children;
    long mask;  // the tables' size - 1
    const int32_t *at;  // where in `words` what leads to a node stands
    const uint8_t *leaf;  // whether it stands there alone: then the words that follow there are the way on
    // Overlaps: the c-th occurrence of k-gram g in a story counts for the texts in which it occurs c times or more.
    const int32_t *grams;  // at each place in `words`, or -1
    const int32_t *items;  // (k-grams + 1): g has the items items[g] to items[g + 1], one for each c
    const int32_t *members, *member_ends;  // item i counts for members[member_ends[i - 1]] to members[member_ends[i]]
    const int32_t *sizes;  // (n_texts): how many k-grams each has
    long n_grams, n_nodes;
};

struct Found {  // each has a row for each thread
    double *f;             // (n_texts): the largest F so far
    int64_t *nearest;      // the story that has it
    int32_t *overlap;      // (n_texts): the largest overlap so far
    int64_t *container;    // the story that has it
    int32_t *reached;      // (n_nodes): how many words matched on the way to this node, or on from this leaf, at the most
    int64_t *place;        // where in the stories that was
};

struct Search {
    const Texts &t;
    double *f;
    int64_t *nearest, *container, *place;
    int32_t *overlap, *reached;
    std::vector<int32_t> kinds, words, overlaps, counts, touched, seen;

    Search(const Texts &t, const Found &found, long thread)
        : t(t), f(found.f + thread * t.n_texts), nearest(found.nearest + thread * t.n_texts),
          container(found.container + thread * t.n_texts), place(found.place + thread * t.n_nodes),
          overlap(found.overlap + thread * t.n_texts), reached(found.reached + thread * t.n_nodes),
          overlaps(t.n_texts), counts(t.n_grams) {}

    int32_t child(int32_t node, int32_t word) const {
        const uint64_t key = uint64_t(node) << 32 | uint32_t(word);
        for (uint64_t i = first_slot(key);; i++) {
            if (t.keys[i & t.mask] == key) return t.children[i & t.mask];
            if (t.keys[i & t.mask] == NONE) return -1;
        }
    }

    void reach(int32_t node, int32_t length, int64_t where) {
        if (length <= reached[node]) return;
        reached[node] = length;
        place[node] = where;
    }

    // The longest match from words[i] on, into `reached` -> the k-gram there, or -1
    int32_t match(long i, long n, int64_t where) {
        if (words[i] < 0) return -1;
        int32_t node = 1 + words[i], length = 1;
        while (!t.leaf[node]) {
            reach(node, length, where);
            const int32_t next = i + length < n && words[i + length] >= 0 ? child(node, words[i + length]) : -1;
            if (next < 0) break;
            node = next;
            length++;
        }
        if (t.leaf[node]) {
            const int32_t *follow = t.words + t.at[node];
            while (i + length < n && words[i + length] >= 0 && words[i + length] == follow[length]) length++;
            reach(node, length, where);
        }
        return length >= t.k ? t.grams[t.at[node]] : -1;
    }

    void count(int32_t gram) {
        const int32_t item = t.items[gram] + counts[gram];
        if (counts[gram]++ == 0) touched.push_back(gram);
        if (item >= t.items[gram + 1]) return;
        for (int32_t m = item ? t.member_ends[item - 1] : 0; m < t.member_ends[item]; m++) overlaps[t.members[m]]++;
    }

    // How many different k-grams a story has.
    long distinct(long n) {
        long size = 64, found = 0;
        while (size < 2 * n) size *= 2;
        seen.assign(size, -1);
        for (long i = 0; i + t.k <= n; i++) {
            uint64_t hash = 0;
            for (long j = 0; j < t.k; j++) hash = (hash + kinds[i + j] + 1) * MIX;
            for (uint64_t slot = hash >> 32;; slot++) {
                int32_t &other = seen[slot & (size - 1)];
                if (other >= 0 && memcmp(&kinds[other], &kinds[i], t.k * sizeof(int32_t))) continue;
                if (other < 0) other = i, found++;
                break;
            }
        }
        return found;
    }

    void compare(int64_t number, long size) {
        if (t.leave_out_own) overlaps[number] = 0;
        for (long text = 0; text < t.n_texts; text++) {
            const int32_t both = overlaps[text];
            if (both > overlap[text]) overlap[text] = both, container[text] = number;
            const double score = 2.0 * both / (t.sizes[text] + size);
            if (score > f[text]) f[text] = score, nearest[text] = number;
        }
        memset(overlaps.data(), 0, t.n_texts * sizeof(int32_t));
    }

    template <typename Id>
    void story(const Id *ids, long n, int64_t number, int64_t where) {
        kinds.resize(n);
        words.resize(n);
        for (long i = 0; i < n; i++) words[i] = t.table[kinds[i] = t.classes[ids[i]]];
        for (long i = 0; i < n; i++) {
            const int32_t gram = match(i, n, where + i);
            if (gram >= 0) count(gram);
        }
        for (int32_t gram : touched) counts[gram] = 0;
        touched.clear();
        compare(number, n < t.k ? 0 : t.by_set ? distinct(n) : n - t.k + 1);
    }
};

template <typename Id>
static void search(const Texts &t, const Found &found, const Id *ids, const int64_t *starts, const int64_t *ends,
                   long first, long n, long n_threads) {
#pragma omp parallel for num_threads(n_threads) schedule(static)
    for (long thread = 0; thread < n_threads; thread++) {
        Search search(t, found, thread);
        for (long i = first + n * thread / n_threads; i < first + n * (thread + 1) / n_threads; i++)
            search.story(ids + starts[i], ends[i] - starts[i], i, starts[i]);
    }
}

extern "C" {
// Stories `first` to first + n; story i is ids[starts[i]] to ids[ends[i]].
void search_words(const Texts *t, const Found *found, const uint32_t *ids, const int64_t *starts, const int64_t *ends,
                  long first, long n, long n_threads) {
    search(*t, *found, ids, starts, ends, first, n, n_threads);
}
void search_tokens(const Texts *t, const Found *found, const uint16_t *ids, const int64_t *starts, const int64_t *ends,
                   long first, long n, long n_threads) {
    search(*t, *found, ids, starts, ends, first, n, n_threads);
}

// Edges (n) into the free tables (mask + 1).
void fill_tables(const uint64_t *edges, const int32_t *to, long n, uint64_t *keys, int32_t *children, long mask) {
    for (long e = 0; e < n; e++) {
        uint64_t i = first_slot(edges[e]);
        while (keys[i & mask] != NONE) i++;
        keys[i & mask] = edges[e];
        children[i & mask] = to[e];
    }
}
}
