// Searches many stories for a few texts: how many k-grams each pair shares, and the longest match from every word on.
// novelty/ngram_search.py builds the tables that are read here, and compiles and calls this file.
#include <cstdint>
#include <cstring>
#include <vector>

constexpr uint64_t NONE = ~uint64_t(0), MIX = 0x9E3779B97F4A7C15u;

static inline uint64_t first_slot(uint64_t key) { return key * MIX >> 32; }

struct Edge {
    uint64_t key;  // node << 32 | word, or NONE for a free slot
    int64_t child;
};

struct Texts {
    const int32_t *classes;  // id of a word of the stories -> its class; words of one class count as the same
    const int32_t *table;    // class -> word of the texts, or -1
    const int32_t *words;    // all texts concatenated, with -1 after each
    long n_texts, k, by_set, leave_out_own;
    // The trie of the texts' suffixes: node 0 is the root, and 1 + w is the node that word w leads to from there.
    const Edge *edges;
    long mask;  // size of the hash table `edges`, minus 1
    const int32_t *at;  // one place in `words` that leads to the node
    const uint8_t *leaf;  // whether no other place does: then the words that follow it there are the only path
    // Overlaps: the c-th occurrence of k-gram g in a story counts for the texts in which it occurs c times or more.
    const int32_t *grams;  // the k-gram that begins at each place in `words`, or -1
    const int32_t *items;  // (k-grams + 1): g has the items items[g] to items[g + 1], one for each c
    const int32_t *members, *member_ends;  // item i counts for members[member_ends[i - 1]] to members[member_ends[i]]
    const int32_t *sizes;  // (n_texts): how many k-grams each has
    long n_grams, n_nodes;
};

struct BestMatches {  // every array but the last has a row for each thread
    double *f;             // (n_texts): the largest F so far
    int64_t *nearest;      // the story that has it
    int32_t *overlap;      // (n_texts): the largest overlap so far
    int64_t *container;    // the story that has it
    int64_t *match;        // (n_nodes), of all threads: the longest match through this node (or on from this leaf)
};

// A match as one number, larger if it is longer, or as long but earlier: its words, and its place in the stories.
static inline int64_t as_number(int64_t length, int64_t place) { return length << 44 | ((int64_t(1) << 44) - 1 - place); }

// Keeps the larger one. Threads may update a node at the same time; whoever comes first, the largest stays.
static inline void keep_larger(int64_t &kept, int64_t match) {
    int64_t seen = __atomic_load_n(&kept, __ATOMIC_RELAXED);
    while (match > seen && !__atomic_compare_exchange_n(&kept, &seen, match, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

struct Search {
    const Texts &t;
    double *f;
    int64_t *nearest, *container, *match;
    int32_t *overlap;
    std::vector<int32_t> classes, words, nodes, grams, overlaps, counts, touched, seen;
    std::vector<uint64_t> keys;
    std::vector<long> active;

    Search(const Texts &t, const BestMatches &best, long thread)
        : t(t), f(best.f + thread * t.n_texts), nearest(best.nearest + thread * t.n_texts),
          container(best.container + thread * t.n_texts), match(best.match),
          overlap(best.overlap + thread * t.n_texts), overlaps(t.n_texts), counts(t.n_grams) {}

    int32_t child(uint64_t key) const {
        for (uint64_t i = first_slot(key);; i++) {
            const Edge &edge = t.edges[i & t.mask];
            if (edge.key == key) return edge.child;
            if (edge.key == NONE) return -1;
        }
    }

    // grams (n): the k-gram of the texts that begins at each of the words, or -1. The longest matches go into `match`.
    // All words take each step down the trie together, so that prefetching hides the latency of memory.
    void find_matches(long n, int64_t where) {
        nodes.resize(n);
        keys.resize(n);
        grams.assign(n, -1);
        active.clear();
        for (long i = 0; i < n; i++)
            if (words[i] >= 0) nodes[i] = 1 + words[i], active.push_back(i);
        for (int32_t length = 1; !active.empty(); length++) {
            for (long i : active) {
                keys[i] = uint64_t(nodes[i]) << 32 | uint32_t(words[i + length]);
                __builtin_prefetch(&t.edges[first_slot(keys[i]) & t.mask]);
            }
            size_t n_active = 0;
            for (long i : active) {
                const int32_t node = nodes[i];
                keep_larger(match[node], as_number(length, where + i));
                if (length == t.k) grams[i] = t.grams[t.at[node]];
                if (words[i + length] < 0) continue;
                if (t.leaf[node]) {
                    if (t.words[t.at[node] + length] != words[i + length]) continue;
                } else if ((nodes[i] = child(keys[i])) < 0)
                    continue;
                active[n_active++] = i;
            }
            active.resize(n_active);
        }
    }

    void count(int32_t gram) {
        const int32_t item = t.items[gram] + counts[gram];
        if (counts[gram]++ == 0) touched.push_back(gram);
        if (item >= t.items[gram + 1]) return;
        for (int32_t m = item ? t.member_ends[item - 1] : 0; m < t.member_ends[item]; m++) overlaps[t.members[m]]++;
    }

    // How many distinct k-grams a story has.
    long distinct(long n) {
        long size = 64, n_distinct = 0;
        while (size < 2 * n) size *= 2;
        seen.assign(size, -1);
        for (long i = 0; i + t.k <= n; i++) {
            uint64_t hash = 0;
            for (long j = 0; j < t.k; j++) hash = (hash + classes[i + j] + 1) * MIX;
            for (uint64_t slot = hash >> 32;; slot++) {
                int32_t &other = seen[slot & (size - 1)];
                if (other >= 0 && memcmp(&classes[other], &classes[i], t.k * sizeof(int32_t))) continue;
                if (other < 0) other = i, n_distinct++;
                break;
            }
        }
        return n_distinct;
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
        classes.resize(n);
        words.resize(n + 1);
        for (long i = 0; i < n; i++) words[i] = t.table[classes[i] = t.classes[ids[i]]];
        words[n] = -1;
        find_matches(n, where);
        for (int32_t gram : grams)
            if (gram >= 0) count(gram);
        for (int32_t gram : touched) counts[gram] = 0;
        touched.clear();
        compare(number, n < t.k ? 0 : t.by_set ? distinct(n) : n - t.k + 1);
    }
};

template <typename Id>
static void search(const Texts &t, const BestMatches &best, const Id *ids, const int64_t *starts, const int64_t *ends,
                   long first, long n, long n_threads) {
#pragma omp parallel for num_threads(n_threads) schedule(static)
    for (long thread = 0; thread < n_threads; thread++) {
        Search search(t, best, thread);
        for (long i = first + n * thread / n_threads; i < first + n * (thread + 1) / n_threads; i++)
            search.story(ids + starts[i], ends[i] - starts[i], i, starts[i]);
    }
}

extern "C" {
// Stories `first` to first + n; story i is ids[starts[i]] to ids[ends[i]].
void search_words(const Texts *t, const BestMatches *best, const uint32_t *ids, const int64_t *starts,
                  const int64_t *ends, long first, long n, long n_threads) {
    search(*t, *best, ids, starts, ends, first, n, n_threads);
}
void search_tokens(const Texts *t, const BestMatches *best, const uint16_t *ids, const int64_t *starts,
                   const int64_t *ends, long first, long n, long n_threads) {
    search(*t, *best, ids, starts, ends, first, n, n_threads);
}

// Puts edges (n), of which edge i leads to node i + 1, into an empty hash table (mask + 1).
void fill_table(const uint64_t *edges, long n, Edge *table, long mask) {
    for (long e = 0; e < n; e++) {
        uint64_t i = first_slot(edges[e]);
        while (table[i & mask].key != NONE) i++;
        table[i & mask] = {edges[e], e + 1};
    }
}
}
