// Attention over whole rows on a CPU: logits of a few query rows at a time, which stay in the second-level cache, a
// function of each row, and the product with the values; the backward pass computes the logits again. whole_rows.py
// compiles and calls it; the normalisers of roundround/softmax are its definition.
//
// A row is held as vectors; what is hidden, and what fills up the last vector, is -inf. Of functions whose weights are
// mostly zero (entmax, top k, hard) only the keys that have a weight are visited after that.

#include <vector>

#include "row_blocks.h"

// -- the two passes

template <class T> void forward_rows(const Call& call, Block<T>& block, Index g, Index a, Index b, const T* panels,
                                     const T* v, Index first, T* out) {
    const Index wide = block.wide_v, group = call.n_heads / call.n_key_heads;
    Function<T>& function = block.function;
    std::vector<Index> dense;
    for (Index h = g * group; h < (g + 1) * group; h++) {
        block.of_head(block.b, h);
        block.compute(a, b, panels, first);
        const Index n_rows = b - a, width = block.width, n = block.most * wide;
        const T* v_first = v + (block.first - first) * wide;
        T *sums = out + n, *result = static_cast<T*>(call.out);
        std::fill(out, out + 2 * n, T(0));
        dense.clear();
        for (Index r = 0; r < n_rows; r++) {
            T *e = block.logits.at + r * block.stride, largest = block.finish(r);
            Row<T> row = block.row(r);
            row.saved[0] = largest;
            if (std::isnan(largest)) std::fill(out + r * wide, out + (r + 1) * wide, NOTHING<T>);
            if (!(largest > -INF<T>)) continue;
            function.solve(e, width, largest, row);
            if (function.is_sparse()) {
                Index count = compact(e, width, row.saved[0], function.values.at, function.places.at);
                if (3 * count < width) {
                    T* p = function.values.at;
                    function.weights(p, p, up(count, WIDTH<T>), row);
                    for (Index i = 0; i < count; i++)
                        add_times(out + r * wide, p[i], v_first + function.places.at[i] * wide, wide);
                    continue;
                }
            }
            function.weights(e, block.logits.at + Index(dense.size()) * block.stride, width,
                             row);  // dense rows move up
            dense.push_back(r);
        }
        multiply<T>(dense.size(), width, wide, block.logits.at, block.stride, 1, v_first, wide, sums, wide, true);
        for (size_t d = 0; d < dense.size(); d++)
            std::copy(sums + d * wide, sums + (d + 1) * wide, out + dense[d] * wide);
        for (Index r = 0; r < n_rows; r++)
            std::copy(out + r * wide, out + r * wide + call.n_values, result + block.row_number(r) * call.n_values);
    }
}

// All rows of a key head in parts, so that threads find enough to do; each part packs the keys that it sees.
template <class T> void forward(const Call& call) {
    constexpr Index PART = 768;
    const Index parts = (call.n_queries + PART - 1) / PART, tasks = call.n_batch * call.n_key_heads * parts;
#pragma omp parallel for schedule(dynamic, 1) num_threads(call.n_threads)
    for (Index task = 0; task < tasks; task++) {
        const Index part = parts - 1 - task % parts, g = task / parts % call.n_key_heads,
                    b = task / parts / call.n_key_heads;
        const Index start = part * PART, end = std::min(start + PART, call.n_queries);
        Block<T> limits(call, 0, 0);
        const Index first = limits.seen(start).first / PANEL<T> * PANEL<T>;
        const Index longest = std::max<Index>(PANEL<T>, up(limits.seen(end - 1).second - first, PANEL<T>));
        Buffer<T> panels(longest * limits.wide_k), v(longest * limits.wide_v);
        pack(call.key, call.k_strides, b, g, first, first + longest, call.n_keys, call.n_channels, panels.at);
        lay_out(call.v, call.v_strides, b, g, first, first + longest, call.n_keys, call.n_values, v.at);
        const Index rows = rows_at_once<T>(longest, 1);
        Block<T> block(call, rows, longest + PANEL<T>);
        block.b = b;
        Buffer<T> out(2 * rows * block.wide_v);
        for (Index a = start; a < end; a += rows)
            forward_rows(call, block, g, a, std::min(a + rows, end), panels.at, v.at, first, out.at);
    }
}

// A key head of a text with all its rows, which alone add to the gradients of its keys, always in the same order.
template <class T> struct Backward {
    const Call& call;
    const Index b, g, longest, rows;
    Block<T> block;
    const Index wide_k, wide_v;
    Buffer<T> k_panels, v_panels, k, v, dk, dv, d_table, d_t_k, grad_out, grads, p, dq, spread;
    std::vector<Index> dense;

    Backward(const Call& call, Index b, Index g)
        : call(call),
          b(b),
          g(g),
          longest(up(call.n_keys, PANEL<T>)),
          rows(rows_at_once<T>(longest, 2)),
          block(call, rows, longest + PANEL<T>),
          wide_k(block.wide_k),
          wide_v(block.wide_v),
          k_panels(longest * wide_k),
          v_panels(longest * wide_v),
          k(longest * wide_k),
          v(longest * wide_v),
          dk(longest * wide_k),
          dv(longest * wide_v),
          d_table(call.table ? 2 * (call.n_keys + block.margin()) : 0),
          d_t_k(call.slopes ? longest : 0),
          grad_out(rows * wide_v),
          grads(rows * (longest + 16)),
          p(longest),
          dq(2 * rows * wide_k),
          spread(call.n_pieces ? longest : 0) {}

    void run() {
        pack(call.key, call.k_strides, b, g, 0, longest, call.n_keys, call.n_channels, k_panels.at);
        pack(call.v, call.v_strides, b, g, 0, longest, call.n_keys, call.n_values, v_panels.at);
        lay_out(call.key, call.k_strides, b, g, 0, longest, call.n_keys, call.n_channels, k.at);
        lay_out(call.v, call.v_strides, b, g, 0, longest, call.n_keys, call.n_values, v.at);
        const Index group = call.n_heads / call.n_key_heads;
        for (Index h = g * group; h < (g + 1) * group; h++) {
            block.of_head(b, h);
            std::fill(d_table.at, d_table.at + (call.table ? 2 * (call.n_keys + block.margin()) : 0), T(0));
            std::fill(d_t_k.at, d_t_k.at + (call.slopes ? longest : 0), T(0));
            for (Index a = 0; a < call.n_queries; a += rows) of_rows(a, std::min(a + rows, call.n_queries));
            const Index n_table = 2 * call.n_keys - 1, head = b * call.n_heads + h;
            if (call.table)
                std::copy(d_table.at + block.margin(), d_table.at + block.margin() + n_table,
                          static_cast<T*>(call.d_table) + head * n_table);
            if (call.slopes)
                std::copy(d_t_k.at, d_t_k.at + call.n_keys, static_cast<T*>(call.d_t_k) + head * call.n_keys);
        }
        for (Index j = 0; j < call.n_keys; j++) {
            const Index place = (b * call.n_key_heads + g) * call.n_keys + j;
            std::copy(dk.at + j * wide_k, dk.at + j * wide_k + call.n_channels,
                      static_cast<T*>(call.dk) + place * call.n_channels);
            std::copy(dv.at + j * wide_v, dv.at + j * wide_v + call.n_values,
                      static_cast<T*>(call.dv) + place * call.n_values);
        }
    }

    void of_rows(Index a, Index end) {
        block.compute(a, end, k_panels.at, 0);
        const Index n_rows = end - a, width = block.width, stride = block.stride, first = block.first;
        std::fill(dq.at, dq.at + 2 * rows * wide_k, T(0));
        dense.clear();
        for (Index r = 0; r < n_rows; r++) {
            for (Index c = 0; c < call.n_values; c++)
                grad_out.at[r * wide_v + c] = at<T>(call.grad_out, call.grad_strides, b, block.h, a + r)[c];
            const T largest = block.finish(r);
            if (largest == -INF<T> || (largest > -INF<T> && block.function.is_sparse() && of_sparse_row(r))) continue;
            const Index d = dense.size();
            dense.push_back(r);
            if (d == r) continue;  // dense rows move up
            std::copy_n(block.logits.at + r * stride, width, block.logits.at + d * stride);
            std::copy_n(block.q.at + r * wide_k, wide_k, block.q.at + d * wide_k);
            std::copy_n(grad_out.at + r * wide_v, wide_v, grad_out.at + d * wide_v);
        }
        const Index n = dense.size();
        block.scores(n, grad_out.at, wide_v, v_panels.at + first * wide_v, grads.at);
        for (Index d = 0; d < n; d++) of_dense_row(d, dense[d]);
        T *e = block.logits.at, *sums = dq.at + rows * wide_k;
        multiply<T>(n, width, wide_k, grads.at, stride, 1, k.at + first * wide_k, wide_k, sums, wide_k, true);
        for (Index d = 0; d < n; d++) {
            std::copy_n(sums + d * wide_k, wide_k, dq.at + dense[d] * wide_k);
            scale_by_factor(dense[d], block.q.at + d * wide_k);
        }
        multiply<T>(width, n, wide_k, grads.at, 1, stride, block.q.at, wide_k, dk.at + first * wide_k, wide_k, true);
        multiply<T>(width, n, wide_v, e, 1, stride, grad_out.at, wide_v, dv.at + first * wide_v, wide_v, true);
        for (Index r = 0; r < n_rows; r++)
            for (Index c = 0; c < call.n_channels; c++)
                static_cast<T*>(call.dq)[block.row_number(r) * call.n_channels + c] =
                    T(call.scale) * dq.at[r * wide_k + c];
    }

    bool of_sparse_row(Index r) {
        Function<T>& function = block.function;
        const Row<T> row = block.row(r);
        T *values = function.values.at, *grad = grads.at, *q = block.q.at + r * wide_k, *dq_r = dq.at + r * wide_k;
        const int32_t* places = function.places.at;
        const Index count =
            compact(block.logits.at + r * block.stride, block.width, row.saved[0], values, function.places.at);
        const Index n = up(count, WIDTH<T>);
        if (3 * count >= block.width) return false;
        for (Index i = 0; i < n; i++)
            grad[i] = i < count ? dot(grad_out.at + r * wide_v, v.at + (block.first + places[i]) * wide_v, wide_v) : 0;
        keep(r, function.gradient(values, p.at, grad, n, row));
        for (Index i = 0; i < count; i++) add_times(dq_r, grad[i], k.at + (block.first + places[i]) * wide_k, wide_k);
        of_bias(r, grad, places, count, scale_by_factor(r, q));
        for (Index i = 0; i < count; i++) {
            add_times(dk.at + (block.first + places[i]) * wide_k, grad[i], q, wide_k);
            add_times(dv.at + (block.first + places[i]) * wide_v, p.at[i], grad_out.at + r * wide_v, wide_v);
        }
        return true;
    }

    void of_dense_row(Index d, Index r) {
        T *e = block.logits.at + d * block.stride, *grad = grads.at + d * block.stride;
        const Row<T> row = block.row(r);
        if (std::isnan(row.saved[0])) {  // a broken row
            std::fill_n(e, block.width, NOTHING<T>), std::fill_n(grad, block.width, NOTHING<T>);
            return;
        }
        keep(r, block.function.gradient(e, p.at, grad, block.width, row));
        std::copy_n(p.at, block.width, e);
        of_bias(r, grad, nullptr, block.width, call.factor ? block.number(call.factor, r) : 1);
    }

    void keep(Index r, Grads<T> of_row) {
        if (call.d_shift) static_cast<T*>(call.d_shift)[block.row_number(r)] = of_row.shift;
        if (call.d_alpha) static_cast<T*>(call.d_alpha)[block.row_number(r)] = of_row.alpha;
    }

    // The row's factor, which multiplies the gradients of keys and queries; its own is the sum of logits times theirs.
    T scale_by_factor(Index r, T* q) {
        if (!call.factor) return 1;
        const T factor = block.number(call.factor, r);
        T* dq_r = dq.at + r * wide_k;
        static_cast<T*>(call.d_factor)[block.row_number(r)] += dot(q, dq_r, wide_k);
        for (Index c = 0; c < wide_k; c++) dq_r[c] *= factor, q[c] *= factor;
        return factor;
    }

    // Gradients of what is added to the products, from those of the logits at these places, or at all.
    void of_bias(Index r, const T* grad, const int32_t* places, Index count, T factor) {
        if (call.n_pieces) return of_pieces(r, grad, places, count, factor);
        const T* more = block.bias_of(r);
        if (!more) return;
        const Index limit = call.n_keys - block.first, number = block.row_number(r);
        const T m = call.slopes ? block.slope(r) : 0, t = call.slopes ? block.t_q(r) : 0;
        T *table = d_table.at + (call.table ? block.in_table(r) : 0), of_slope = 0, of_factor = 0, sum = 0;
        for (Index i = 0; i < count; i++) {
            const Index j = places ? places[i] : i;
            if (j >= limit) break;
            of_factor += grad[i] * more[j];
            const T d = factor * grad[i];
            sum += d;
            if (call.table) table[j] += d;
            if (call.slopes) d_t_k.at[block.first + j] += m * d, of_slope += d * (block.t_k.at[j] - t);
        }
        if (call.slopes)
            static_cast<T*>(call.d_slopes)[number] = of_slope, static_cast<T*>(call.d_t_q)[number] = -m * sum;
        if (call.factor) static_cast<T*>(call.d_factor)[number] += of_factor;
    }

    void of_pieces(Index r, const T* grad, const int32_t* places, Index count, T factor) {
        if (places) {
            std::fill_n(spread.at, block.width, T(0));
            for (Index i = 0; i < count; i++) spread.at[places[i]] = grad[i];
            grad = spread.at;
        }
        const T scale = block.row_scale(r), *u = block.table.at + block.in_table(r);
        T *d_u = d_table.at + block.in_table(r), of_scale = 0, of_factor = 0;
        T* d_pieces = static_cast<T*>(call.d_pieces) + (b * call.n_heads + block.h) * call.n_pieces * 2;
        block.each_piece(r, [&](Index p, Index from, Index to) {
            const T slope = block.piece(p)[0], level = block.piece(p)[1], through = factor * slope * scale;
            Vec<T> sums{}, sums_u{};
            Index j = from;
            for (; j + WIDTH<T> <= to; j += WIDTH<T>) {
                auto d = load(grad + j);
                sums += d, sums_u += d * load(u + j);
                store(d_u + j, load(d_u + j) + through * d);
            }
            T sum = total<T>(sums), sum_u = total<T>(sums_u);
            for (; j < to; j++) sum += grad[j], sum_u += grad[j] * u[j], d_u[j] += through * grad[j];
            d_pieces[2 * p] += factor * scale * sum_u, d_pieces[2 * p + 1] += factor * sum;
            of_scale += factor * slope * sum_u, of_factor += slope * scale * sum_u + level * sum;
        });
        static_cast<T*>(call.d_row_scale)[block.row_number(r)] = of_scale;
        if (call.factor) static_cast<T*>(call.d_factor)[block.row_number(r)] += of_factor;
    }
};

template <class T> void backward(const Call& call) {
    const Index tasks = call.n_batch * call.n_key_heads;
#pragma omp parallel for schedule(dynamic, 1) num_threads(call.n_threads)
    for (Index task = 0; task < tasks; task++)
        Backward<T>(call, task / call.n_key_heads, task % call.n_key_heads).run();
}

extern "C" {
void forward_float(const Call* call) { forward<float>(*call); }
void forward_double(const Call* call) { forward<double>(*call); }
void backward_float(const Call* call) { backward<float>(*call); }
void backward_double(const Call* call) { backward<double>(*call); }
}
