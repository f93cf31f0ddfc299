// A few query rows of one head at a time: their logits, and what a bias adds to them.

#pragma once
#include "row_functions.h"

template <class T> inline const T* at(const void* base, const Index* strides, Index b, Index h, Index i) {
    return static_cast<const T*>(base) + b * strides[0] + h * strides[1] + i * strides[2];
}

// The query rows of one head of one text, a few at a time, over the keys `first` .. `first + width`.
template <class T> struct Block {
    const Call& call;
    const Index offset, wide_k, wide_v, most;  // channels in whole vectors; rows of a block
    Index b = 0, h = 0, first_row = 0, rows = 0, first = 0, width = 0, stride = 0;
    Buffer<T> q, logits, bias, valid, t_k, table;
    Buffer<Index> ends;  // of pieces, in tokens of distance, as the row before had them
    Function<T> function;

    Block(const Call& call, Index most, Index longest)
        : call(call),
          offset(call.n_keys - call.n_queries),
          wide_k(up(call.n_channels, WIDTH<T>)),
          wide_v(up(call.n_values, WIDTH<T>)),
          most(most),
          q(most * wide_k),
          logits(most * (longest + 16)),
          bias(longest),
          valid(call.valid ? up(call.n_keys, PANEL<T>) + PANEL<T> : 0),
          t_k(call.slopes ? longest : 0),
          table(call.table ? 2 * (call.n_keys + margin()) : 0),
          ends(call.n_pieces),
          function(call, longest) {}

    Index margin() const { return most + 2 * PANEL<T> + std::abs(offset); }
    Index row_number(Index r) const { return (b * call.n_heads + h) * call.n_queries + first_row + r; }
    T number(const void* of_rows, Index r) const { return of_rows ? static_cast<const T*>(of_rows)[row_number(r)] : 0; }
    Row<T> row(Index r) const {
        return {number(call.shift, r), number(call.alpha, r), static_cast<T*>(call.saved) + SAVED * row_number(r)};
    }

    void of_head(Index b_, Index h_) {
        b = b_, h = h_;
        if (call.valid)
            for (Index j = 0; j < call.n_keys; j++) valid.at[j] = call.valid[b * call.n_keys + j];
        if (call.table) {
            const T* from = static_cast<const T*>(call.table) + h * (2 * call.n_keys - 1);
            std::copy(from, from + 2 * call.n_keys - 1, table.at + margin());
        }
    }

    // The keys that a query row sees, padding aside.
    std::pair<Index, Index> seen(Index i) const {
        Index t = i + offset, low = 0, high = call.causal ? t + 1 : call.n_keys;
        if (call.window) low = std::max(low, t - call.window + 1), high = std::min(high, t + call.window);
        if (call.chunk)
            low = std::max(low, t / call.chunk * call.chunk), high = std::min(high, (t / call.chunk + 1) * call.chunk);
        high = std::max<Index>(0, std::min(high, call.n_keys));
        return {std::min(low, high), high};
    }

    // Logits of the rows a .. b by the keys packed in panels from `packed_first` on.
    void compute(Index a, Index b_, const T* panels, Index packed_first) {
        first_row = a, rows = b_ - a;
        first = std::max(packed_first, seen(a).first / PANEL<T> * PANEL<T>);
        width = std::max<Index>(0, up(seen(b_ - 1).second - first, PANEL<T>));
        stride = width + 16;  // lines of several rows do not meet in one set of the cache
        for (Index r = 0; r < rows; r++)
            for (Index c = 0; c < call.n_channels; c++)
                q.at[r * wide_k + c] = at<T>(call.q, call.q_strides, b, h, a + r)[c] * T(call.scale);
        scores(rows, q.at, wide_k, panels + (first - packed_first) * wide_k, logits.at);
        if (call.slopes) fill_coordinates();
    }

    void scores(Index n, const T* x, Index channels, const T* panels, T* out) const {
        for (Index j = 0; j < width; j += PANEL<T>)
            multiply<T>(n, channels, PANEL<T>, x, channels, 1, panels + j * channels, PANEL<T>, out + j, stride, false);
    }

    // -- biases

    Index coordinate_head() const { return b * call.n_coordinate_heads + (call.n_coordinate_heads > 1 ? h : 0); }
    double centre() const { return call.t_q[coordinate_head() * call.n_queries + first_row]; }
    T slope(Index r) const { return static_cast<const T*>(call.slopes)[row_number(r)]; }
    T t_q(Index r) const { return T(call.t_q[coordinate_head() * call.n_queries + first_row + r] - centre()); }
    Index in_table(Index r) const { return margin() + call.n_keys - 1 - (first_row + r + offset) + first; }

    void fill_coordinates() {  // counted from the block's first row, where float32 would round large ones
        for (Index j = 0; j < width; j++)
            t_k.at[j] =
                first + j < call.n_keys ? T(call.t_k[coordinate_head() * call.n_keys + first + j] - centre()) : 0;
    }

    T row_scale(Index r) const { return static_cast<const T*>(call.row_scale)[b * call.n_queries + first_row + r]; }
    const T* piece(Index p) const { return static_cast<const T*>(call.pieces) + 2 * (h * call.n_pieces + p); }

    // run(p, from, to) of each piece p and the keys on it, which are neighbours because the table grows with distance.
    template <class Run> void each_piece(Index r, Run run) {
        const T *knots = static_cast<const T*>(call.knots), *u = table.at + margin() + call.n_keys - 1,
                scale = row_scale(r);
        const Index own = first_row + r + offset - first;
        Index near = 0;
        for (Index p = 0; p < call.n_pieces; p++) {
            Index& far = ends.at[p];
            if (p == call.n_pieces - 1) far = call.n_keys;
            else {
                while (far < call.n_keys && u[far] * scale <= knots[p]) far++;
                while (far > 0 && u[far - 1] * scale > knots[p]) far--;
            }
            if (near >= far) continue;
            run(p, std::max<Index>(0, own - far + 1), std::min(width, own - near + 1));
            run(p, std::max<Index>(0, own + std::max<Index>(1, near)), std::min(width, own + far));
            near = far;
        }
    }

    const T* interpolated(Index r) {
        const T* u = table.at + in_table(r);
        each_piece(r, [&](Index p, Index from, Index to) {
            const T slope = piece(p)[0] * row_scale(r), level = piece(p)[1];
            for (Index j = from; j < to; j++) bias.at[j] = slope * u[j] + level;
        });
        return bias.at;
    }

    const T* bias_of(Index r) {
        if (call.n_pieces) return interpolated(r);
        if (call.table) return table.at + in_table(r);
        if (!call.slopes) return nullptr;
        const T m = slope(r), t = t_q(r);
        for (Index j = 0; j < width; j += WIDTH<T>) store(bias.at + j, m * (load(t_k.at + j) - t));
        return bias.at;
    }

    // From products to logits: bias, factor and cap, and -inf where hidden. Returns the largest: -inf where the row
    // sees nothing, NaN where a visible logit is not finite.
    T finish(Index r) {
        typename Lanes<T>::I place{};
        for (Index i = 0; i < WIDTH<T>; i++) place[i] = i;
        auto [low, high] = seen(first_row + r);
        const T *more = bias_of(r), factor = call.factor ? number(call.factor, r) : 1, cap = T(call.cap);
        T* e = logits.at + r * stride;
        Vec<T> broken{}, most_{}, zero{};
        most_ -= INF<T>;
        for (Index j = 0; j < width; j += WIDTH<T>) {
            auto x = load(e + j);
            if (more) x += load(more + j);
            x *= factor;
            auto where = place + Place<T>(first + j);
            auto visible = (where >= Place<T>(low)) & (where < Place<T>(high));
            if (call.valid) visible &= load(valid.at + first + j) != 0;
            broken += visible ? x * 0 : zero;
            if (cap > 0) {
                auto y = expm1_of(larger<T>(all<T>(-80), x * (2 / cap) < 80 ? x * (2 / cap) : all<T>(80)));
                x = cap * (y / (y + 2));
            }
            x = visible ? x : zero - INF<T>;
            store(e + j, x);
            most_ = larger<T>(most_, x);
        }
        T largest = -INF<T>;
        for (Index i = 0; i < WIDTH<T>; i++) largest = std::max(largest, most_[i]);
        return total<T>(broken) == 0 ? largest : NOTHING<T>;
    }
};

// Keys in panels of PANEL keys, channel by channel, for `Block::scores`; and rows one behind another, zeros between.
template <class T> void pack(const void* x, const Index* strides, Index b, Index g, Index first, Index last, Index n,
                             Index channels, T* panels) {
    Index wide = up(channels, WIDTH<T>);
    for (Index j = first; j < last; j++)
        for (Index c = 0; c < channels; c++)
            panels[((j - first) / PANEL<T> * wide + c) * PANEL<T> + (j - first) % PANEL<T>] =
                j < n ? at<T>(x, strides, b, g, j)[c] : 0;
}
template <class T> void lay_out(const void* x, const Index* strides, Index b, Index g, Index first, Index last, Index n,
                                Index channels, T* rows) {
    Index wide = up(channels, WIDTH<T>);
    for (Index j = first; j < std::min(last, n); j++)
        std::copy(at<T>(x, strides, b, g, j), at<T>(x, strides, b, g, j) + channels, rows + (j - first) * wide);
}

// Rows whose logits, `buffers` times, fill most of a second-level cache; few are slower for want of reuse.
template <class T> Index rows_at_once(Index longest, Index buffers) {
    Index rows = (768 << 10) / Index(sizeof(T)) / (buffers * std::max<Index>(1, longest)) / 6 * 6;
    return std::min<Index>(48, std::max<Index>(24 / buffers, rows));
}
