// What a row of attention is asked for, and the functions that make weights of its logits and gradients of theirs.

#pragma once
#include "row_vectors.h"

// -- what is asked for; whole_rows.py has the same fields in the same order

enum Kind : Index { SOFTMAX, ADAPTIVE, ENTMAX, SIGMOID, SOFTPICK, HARD, TOP_K };
constexpr Index SAVED = 4;  // numbers of a row that the backward pass reads again

struct Call {
    Index n_batch, n_heads, n_key_heads, n_queries, n_keys, n_channels, n_values;
    Index kind, causal, window, chunk, n_threads, k, n_coefficients, n_coordinate_heads, n_pieces;
    double scale, cap, eps, min_entropy, min_beta, lowest, highest, through_beta;
    const double* coefficients;
    // [batch, heads, rows, channels] with the strides of the first three in elements
    const void *q, *key, *v, *grad_out;
    Index q_strides[3], k_strides[3], v_strides[3], grad_strides[3];
    const uint8_t* valid;                // [batch, keys] or null
    const void *factor, *shift, *alpha;  // [batch, heads, queries] or null
    const void* table;                   // [heads, 2 keys - 1] by key minus query or null
    const void* slopes;                  // [batch, heads, queries] or null, with
    const double *t_q, *t_k;             // [batch, coordinate heads, queries or keys]
    const void *pieces, *knots;          // [heads, pieces, 2]: slope and level; [pieces - 1]; or null, with
    const void* row_scale;               // [batch, queries]: table times this is what the pieces are functions of
    void *out, *saved;                   // contiguous, as all that follow
    void *dq, *dk, *dv, *d_factor, *d_shift, *d_alpha, *d_table, *d_slopes, *d_t_q, *d_t_k, *d_pieces, *d_row_scale;
};

template <class T> struct Row {
    T shift, alpha, *saved;
};  // of one row
template <class T> struct Grads {
    T shift = 0, alpha = 0;
};

// p = u^(1 / a) of u = max(a (e - largest) - tau, 0), and p^(2 - alpha) = p / u
template <class T> struct Power {
    const T a, largest, tau;
    const int whole = std::abs(1 / a - std::round(1 / a)) < T(1e-6) && a > T(0.1) ? int(std::round(1 / a)) : 0;
    std::pair<Vec<T>, Vec<T>> operator()(Vec<T> e) const {
        auto zero = Vec<T>{}, u = larger<T>(a * (e - largest) - tau, zero), one = zero + 1;
        auto g = u > 0 ? one : zero;
        if (whole) {
            for (int i = 1; i < whole; i++) g *= u;
            return {g * u, g};
        }
        auto inside = u > 0 ? u : one, p = g * exp_of(log_of(inside) / a);
        return {p, p / inside};
    }
};

// -- functions of a row: `solve` reads the logits once or more, `weights` and `gradient` then one by one

template <class T> struct Function {
    const Call& call;
    Buffer<T> values;
    Buffer<int32_t> places;
    Function(const Call& call, Index width) : call(call), values(width + 2 * WIDTH<T>), places(width + 2 * WIDTH<T>) {}

    bool is_sparse() const { return call.kind == ENTMAX || call.kind == HARD || call.kind == TOP_K; }

    // What is saved of a row whose largest logit is `largest`; of sparse ones first the cut, below which weights are 0.
    void solve(const T* e, Index n, T largest, Row<T> row) {
        T* saved = row.saved;
        std::fill(saved, saved + SAVED, T(0));
        switch (call.kind) {
            case SOFTMAX: saved[0] = log_sum_exp(e, n, largest, call.shift ? row.shift : -INF<T>); break;
            case ADAPTIVE: solve_adaptive(e, n, largest, saved); break;
            case ENTMAX: solve_entmax(e, n, largest, row); break;
            case SOFTPICK: solve_softpick(e, n, largest, saved); break;
            case HARD: saved[0] = largest, saved[1] = T(compact(e, n, largest, values.at, places.at)); break;
            case TOP_K: {
                saved[0] = kth_largest(e, n);
                Index count = compact(e, n, saved[0], values.at, places.at);
                saved[1] = log_sum_exp(values.at, up(count, WIDTH<T>), largest, -INF<T>);
            }
        }
    }

    T log_sum_exp(const T* e, Index n, T largest, T null) {
        T m = std::max(largest, null);
        Vec<T> sum{};
        for (Index j = 0; j < n; j += WIDTH<T>) sum += exp_of(load(e + j) - m);
        return m + std::log(total<T>(sum) + std::exp(null - m));
    }

    void solve_adaptive(const T* e, Index n, T largest, T* saved) {
        Vec<T> sum{}, first{};
        for (Index j = 0; j < n; j += WIDTH<T>) {
            auto x = larger<T>(load(e + j) - largest, all<T>(-2000)), w = exp_of(x);
            sum += w, first += w * x;
        }
        T ln_z = std::log(total<T>(sum)), mean = total<T>(first) / total<T>(sum),
          beta = inverse_temperature(ln_z - mean).first;
        sum = Vec<T>{};
        for (Index j = 0; j < n; j += WIDTH<T>) sum += exp_of(beta * (load(e + j) - largest));
        saved[0] = beta * largest + std::log(total<T>(sum)), saved[1] = largest + ln_z, saved[2] = largest + mean,
        saved[3] = beta;
    }

    // The polynomial of adaptive_temperature.py, highest power first, and its derivative.
    std::pair<T, T> inverse_temperature(double entropy) const {
        double x = std::min(std::max(entropy, call.lowest), call.highest), value = 0, slope = 0;
        for (Index i = 0; i < call.n_coefficients; i++)
            slope = slope * x + value, value = value * x + call.coefficients[i];
        if (!(entropy > call.min_entropy)) return {T(1), T(0)};
        if (value < call.min_beta) return {T(call.min_beta), T(0)};
        return {T(value), T(x == entropy ? slope * call.through_beta : 0)};
    }

    // tau of sum_j max(u_j - tau, 0)^(1 / a) = 1 with u = a (e - largest), a = alpha - 1: Newton's steps from below. Up
    // to alpha 2 they are monotone, so keys that have lost their weight never get it back, and the root over a part of the
    // keys is a bound for that over all.
    void solve_entmax(const T* e, Index n, T largest, Row<T> row) {
        const T a = row.alpha - 1;
        T tau = -1;
        Index count = compact(e, n, largest - 1 / a, values.at, places.at);
        for (Index part = 16; part >= 1; part /= 4) {
            if (part > 1 && count / part < 32) continue;
            for (int step = 0; step < 100; step++) {
                if (part == 1 && step < 3)
                    count = compact(values.at, up(count, WIDTH<T>), largest + tau / a, values.at, places.at);
                Power<T> power{a, largest, tau};
                Vec<T> sum{}, slope{};
                for (Index j = 0; j < up(count / part, WIDTH<T>); j += WIDTH<T>) {
                    auto [p, g] = power(load(values.at + j));
                    sum += p, slope += g;
                }
                const T excess = total<T>(sum) - 1;
                if (excess <= 0) break;
                const T next = tau + excess * a / total<T>(slope);
                if (next == tau || (part > 1 && std::abs(next - tau) < T(0.01))) break;
                tau = next;
            }
        }
        row.saved[0] = largest + tau / a, row.saved[1] = largest, row.saved[2] = tau;
    }

    void solve_softpick(const T* e, Index n, T largest, T* saved) {
        T m = std::max(largest, T(0)), at_zero = std::exp(-m);
        Vec<T> sum{};
        for (Index j = 0; j < n; j += WIDTH<T>) sum += picked_and_lost(load(e + j), m, at_zero).second;
        saved[0] = m, saved[1] = 1 / (total<T>(sum) + T(call.eps));
    }

    // (exp(e) - 1) exp(-m) and its size, without cancellation near 0 and without overflow; 0 where hidden
    std::pair<Vec<T>, Vec<T>> picked_and_lost(Vec<T> e, T m, T at_zero) const {
        auto above = larger<T>(e, Vec<T>{}), below = e < 0 ? e : Vec<T>{}, zero = Vec<T>{};
        auto gain = m == 0           ? zero
                    : above < T(0.3) ? expm1_of(above < T(0.3) ? above : zero) * at_zero
                                     : exp_of(above - m) - at_zero;
        auto loss = -expm1_of(below) * at_zero;
        auto size = e > 0 ? gain : loss;
        return {e > 0 ? gain : zero, e > -INF<T> ? size : zero};
    }

    // The k-th largest, or -inf. Of the largest of groups of keys at least k are as large as the k-th of them.
    T kth_largest(const T* e, Index n) {
        Index groups = up(4 * call.k, WIDTH<T>), count = n;
        if (2 * groups > n) {
            std::copy(e, e + n, values.at);
        } else {
            std::copy(e, e + groups, values.at);
            for (Index j = groups; j < n; j += groups)
                for (Index g = 0; g < groups && j + g < n; g += WIDTH<T>)
                    store(values.at + g, larger<T>(load(values.at + g), load(e + j + g)));
            std::nth_element(values.at, values.at + call.k - 1, values.at + groups, std::greater<T>());
            count = compact(e, n, values.at[call.k - 1], values.at, places.at);
        }
        if (count <= call.k) return count < call.k ? -INF<T> : *std::min_element(values.at, values.at + count);
        std::nth_element(values.at, values.at + call.k - 1, values.at + count, std::greater<T>());
        return values.at[call.k - 1];
    }

    // Weights p of logits e, which may be the same place.
    void weights(const T* e, T* p, Index n, Row<T> row) const {
        const T *saved = row.saved, at_zero = std::exp(-saved[0]);
        for (Index j = 0; j < n; j += WIDTH<T>) store(p + j, weight(load(e + j), row, saved, at_zero));
    }

    Vec<T> weight(Vec<T> e, const Row<T>& row, const T* saved, T at_zero) const {
        Vec<T> zero{};
        switch (call.kind) {
            case SOFTMAX: return exp_of(e - saved[0]);
            case ADAPTIVE: return exp_of(saved[3] * e - saved[0]);
            case ENTMAX: return Power<T>{row.alpha - 1, saved[1], saved[2]}(e).first;
            case SIGMOID: {
                auto x = e - row.shift, z = exp_of(x < 0 ? x : -x);
                return (x < 0 ? z : zero + 1) / (z + 1);
            }
            case SOFTPICK: return picked_and_lost(e, saved[0], at_zero).first * saved[1];
            case HARD: return e == saved[0] ? zero + 1 / saved[1] : zero;
            default: return e >= saved[0] ? exp_of(e - saved[1]) : zero;
        }
    }

    // Gradients of the logits, in place of those of the weights, and the weights p; n whole vectors.
    Grads<T> gradient(const T* e, T* p, T* grad, Index n, Row<T> row) const {
        const T *saved = row.saved, a = row.alpha - 1, at_zero = std::exp(-saved[0]);
        const Power<T> power{a, saved[1], saved[2]};
        Vec<T> product{}, sum_g{}, product_g{}, entropy{}, moment{}, moment_p{}, of_alpha{}, zero{};
        for (Index j = 0; j < n; j += WIDTH<T>) {
            auto x = load(e + j), dp = load(grad + j), w = weight(x, row, saved, at_zero);
            store(p + j, w);
            product += w * dp;
            if (call.kind == ADAPTIVE) {
                auto centred = larger<T>(x, all<T>(-1e4)) - saved[2];
                moment += w * dp * centred, moment_p += w * centred;
            } else if (call.kind == ENTMAX) {
                auto g = power(x).second;
                sum_g += g, product_g += g * dp;
                if (call.d_alpha) entropy += w > 0 ? w * log_of(w > 0 ? w : zero + 1) : zero;
            }
        }
        T delta = total<T>(product), d_entropy = 0, ent = total<T>(entropy);
        if (call.kind == ENTMAX) delta = total<T>(sum_g) > 0 ? total<T>(product_g) / total<T>(sum_g) : 0;
        if (call.kind == ADAPTIVE)
            d_entropy =
                inverse_temperature(saved[1] - saved[2]).second * (total<T>(moment) - delta * total<T>(moment_p));
        for (Index j = 0; j < n; j += WIDTH<T>) {
            auto x = load(e + j), dp = load(grad + j), w = load(p + j), d = w * (dp - delta);
            switch (call.kind) {
                case SOFTMAX:
                    if (call.cap > 0) d = x > -INF<T> ? d * (1 - x * x * T(1 / (call.cap * call.cap))) : zero;
                    break;
                case ADAPTIVE:
                    d = saved[3] * d - d_entropy * exp_of(x - saved[1]) * (larger<T>(x, all<T>(-1e4)) - saved[2]);
                    break;
                case ENTMAX: {
                    auto g = power(x).second;
                    d = g * (dp - delta);
                    auto share = g / std::max(total<T>(sum_g), std::numeric_limits<T>::min());
                    auto w_ln_w = w > 0 ? w * log_of(w > 0 ? w : zero + 1) : zero;
                    if (call.d_alpha) of_alpha += dp * ((w - share) / (a * a) - (w_ln_w - share * ent) / a);
                    break;
                }
                case SIGMOID: d = dp * w * (1 - w); break;
                case SOFTPICK: {
                    auto slope =
                        (x > 0 ? exp_of(x - saved[0]) : exp_of(larger<T>(x, all<T>(-2000))) * at_zero) * saved[1];
                    d = x > 0 ? slope * (dp - delta) : x < 0 ? slope * delta : slope * dp;
                    d = x > -INF<T> ? d : zero;
                    break;
                }
                case HARD: d = zero;
            }
            store(grad + j, d);
        }
        T of_shift = call.kind == SOFTMAX && call.shift ? -std::exp(row.shift - saved[0]) * delta : 0;
        return {of_shift, total<T>(of_alpha)};
    }
};
