// Attention over whole rows on a CPU: logits of a few query rows at a time, which stay in the second-level cache, a
// function of each row, and the product with the values; the backward pass computes the logits again. whole_rows.py
// compiles and calls it; the normalisers of roundround/softmax are its definition.
//
// A row is held as vectors; what is hidden, and what fills up the last vector, is -inf. Of functions whose weights are
// mostly zero (entmax, top k, hard) only the keys that have a weight are visited after that.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <type_traits>
#include <vector>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

using Index = int64_t;

// -- vectors

#if defined(__AVX512F__)
constexpr int BYTES = 64, VECTORS = 4;  // of a tile: 6 x 4 sums and 4 operands in 32 registers
#elif defined(__AVX__)
constexpr int BYTES = 32, VECTORS = 2;  // 6 x 2 sums in 16 registers
#else
constexpr int BYTES = 16, VECTORS = 4;
#endif

template <class T> struct Lanes;
template <> struct Lanes<float> {
    typedef float V __attribute__((vector_size(BYTES)));
    typedef int32_t I __attribute__((vector_size(BYTES)));
};
template <> struct Lanes<double> {
    typedef double V __attribute__((vector_size(BYTES)));
    typedef int64_t I __attribute__((vector_size(BYTES)));
};
template <class T> using Vec = typename Lanes<T>::V;
template <class T> using Place = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
template <class T> constexpr Index WIDTH = BYTES / sizeof(T);
template <class T> constexpr Index PANEL = VECTORS * WIDTH<T>;  // keys whose logits are computed together
template <class T> constexpr T INF = std::numeric_limits<T>::infinity();
template <class T> constexpr T NOTHING = std::numeric_limits<T>::quiet_NaN();

template <class T> inline Vec<T> load(const T* at) { Vec<T> x; std::memcpy(&x, at, BYTES); return x; }
template <class T> inline void store(T* at, Vec<T> x) { std::memcpy(at, &x, BYTES); }
template <class T> inline Vec<T> all(T x) { return Vec<T>{} + x; }
template <class T> inline Vec<T> larger(Vec<T> x, Vec<T> y) { return x > y ? x : y; }
template <class T> inline T total(Vec<T> x) { T sum = 0; for (Index i = 0; i < WIDTH<T>; i++) sum += x[i]; return sum; }
inline Index up(Index n, Index step) { return (n + step - 1) / step * step; }

template <class T> struct Buffer {  // zeros, aligned to cache lines
    T* at;
    explicit Buffer(Index n) : at(static_cast<T*>(std::aligned_alloc(64, up((n + 1) * sizeof(T), 64)))) {
        if (!at) throw std::bad_alloc();
        std::memset(static_cast<void*>(at), 0, up((n + 1) * sizeof(T), 64));
    }
    Buffer(const Buffer&) = delete;
    ~Buffer() { std::free(at); }
};

// exp and expm1 by Cody and Waite's reduction and the polynomial of Cephes' expf: two units in the last place
inline Vec<float> tail_of_exp(Vec<float> r) {  // exp(r) - 1 for |r| <= ln(2) / 2
    auto p = ((((1.9875691500e-4f * r + 1.3981999507e-3f) * r + 8.3334519073e-3f) * r + 4.1665795894e-2f) * r +
              1.6666665459e-1f) * r + 5.0000001201e-1f;
    return p * r * r + r;
}
inline Vec<float> exp_of(Vec<float> x) {
    auto inside = larger<float>(all<float>(-87.3f), x < 88.3f ? x : all<float>(88.3f));
    auto n = (inside * 1.44269504f + 12582912.f) - 12582912.f;  // rounds to the nearest integer
    auto r = inside - n * 0.693359375f + n * 2.12194440e-4f;
    auto power = (__builtin_convertvector(n, Lanes<float>::I) + 127) << 23;
    Vec<float> two_to_n;
    std::memcpy(&two_to_n, &power, BYTES);
    auto y = tail_of_exp(r) * two_to_n + two_to_n;
    return x < -87.3f ? Vec<float>{} : y;
}
inline Vec<float> expm1_of(Vec<float> x) {
    auto size = x < 0 ? -x : x;
    return size < 0.34f ? tail_of_exp(size < 0.34f ? x : Vec<float>{}) : exp_of(x) - 1.f;
}
inline Vec<float> log_of(Vec<float> x) {  // of positive numbers: Cephes' logf
    Lanes<float>::I bits;
    std::memcpy(&bits, &x, BYTES);
    auto exponent = __builtin_convertvector((bits >> 23) - 126, Vec<float>);
    bits = (bits & 0x007fffff) | 0x3f000000;  // a mantissa from 1/2 to 1
    Vec<float> m;
    std::memcpy(&m, &bits, BYTES);
    auto small = m < 0.707106781f;
    exponent = small ? exponent - 1.f : exponent;
    m = small ? m + m - 1.f : m - 1.f;
    auto p = ((((((((7.0376836292e-2f * m - 1.1514610310e-1f) * m + 1.1676998740e-1f) * m - 1.2420140846e-1f) * m +
                  1.4249322787e-1f) * m - 1.6668057665e-1f) * m + 2.0000714765e-1f) * m - 2.4999993993e-1f) * m +
              3.3333331174e-1f) * m * m * m;
    return m + (p - 0.5f * m * m - exponent * 2.12194440e-4f) + exponent * 0.693359375f;
}
#define LANE_BY_LANE(name, function) \
    inline Vec<double> name(Vec<double> x) { for (Index i = 0; i < WIDTH<double>; i++) x[i] = function(x[i]); return x; }
LANE_BY_LANE(exp_of, std::exp)
LANE_BY_LANE(expm1_of, std::expm1)
LANE_BY_LANE(log_of, std::log)

// -- products

template <class T, int R, int M>
void tile(Index inner, const T* a, Index a_row, Index a_step, const T* b, Index b_step, T* out, Index out_row, bool add) {
    Vec<T> sum[R][M];
    for (int r = 0; r < R; r++)
        for (int m = 0; m < M; m++) sum[r][m] = add ? load(out + r * out_row + m * WIDTH<T>) : Vec<T>{};
    for (Index i = 0; i < inner; i++) {
        Vec<T> x[M];
        for (int m = 0; m < M; m++) x[m] = load(b + i * b_step + m * WIDTH<T>);
        for (int r = 0; r < R; r++) {
            T factor = a[r * a_row + i * a_step];
            for (int m = 0; m < M; m++) sum[r][m] += factor * x[m];
        }
    }
    for (int r = 0; r < R; r++)
        for (int m = 0; m < M; m++) store(out + r * out_row + m * WIDTH<T>, sum[r][m]);
}

template <class T, int M>
void strip(Index rows, Index inner, const T* a, Index a_row, Index a_step, const T* b, Index b_step, T* out,
           Index out_row, bool add) {
    Index r = 0;
    for (; r + 6 <= rows; r += 6) tile<T, 6, M>(inner, a + r * a_row, a_row, a_step, b, b_step, out + r * out_row, out_row, add);
    a += r * a_row, out += r * out_row;
    switch (rows - r) {
        case 5: tile<T, 5, M>(inner, a, a_row, a_step, b, b_step, out, out_row, add); break;
        case 4: tile<T, 4, M>(inner, a, a_row, a_step, b, b_step, out, out_row, add); break;
        case 3: tile<T, 3, M>(inner, a, a_row, a_step, b, b_step, out, out_row, add); break;
        case 2: tile<T, 2, M>(inner, a, a_row, a_step, b, b_step, out, out_row, add); break;
        case 1: tile<T, 1, M>(inner, a, a_row, a_step, b, b_step, out, out_row, add); break;
    }
}

// out [rows x width] = or += a [rows x inner] b [inner x width]; a is anywhere in memory, width in whole vectors
template <class T>
void multiply(Index rows, Index inner, Index width, const T* a, Index a_row, Index a_step, const T* b, Index b_step,
              T* out, Index out_row, bool add) {
    constexpr Index DEPTH = 128;  // so many rows of b stay in the first-level cache
    for (Index i = 0; i < inner; i += DEPTH, add = true)
        for (Index c = 0; c < width; c += PANEL<T>) {
            Index depth = std::min(DEPTH, inner - i), vectors = std::min<Index>(VECTORS, (width - c) / WIDTH<T>);
            const T *a_i = a + i * a_step, *b_i = b + i * b_step + c;
            if (vectors == VECTORS) strip<T, VECTORS>(rows, depth, a_i, a_row, a_step, b_i, b_step, out + c, out_row, add);
            else for (Index m = 0; m < vectors; m++)
                strip<T, 1>(rows, depth, a_i, a_row, a_step, b_i + m * WIDTH<T>, b_step, out + c + m * WIDTH<T>, out_row, add);
        }
}

template <class T> inline T dot(const T* x, const T* y, Index n) {
    Vec<T> sum{};
    for (Index c = 0; c < n; c += WIDTH<T>) sum += load(x + c) * load(y + c);
    return total<T>(sum);
}
template <class T> inline void add_times(T* to, T factor, const T* x, Index n) {
    for (Index c = 0; c < n; c += WIDTH<T>) store(to + c, load(to + c) + factor * load(x + c));
}

// The entries that are at least `cut`, with their places; returns how many, and fills the last vector with -inf.
template <class T> Index compact(const T* e, Index n, T cut, T* values, int32_t* places) {
    Index count = 0;
    for (Index j = 0; j < n; j += WIDTH<T>) {
#if defined(__AVX512F__)
        if constexpr (std::is_same_v<T, float>) {
            __m512 x = _mm512_loadu_ps(e + j);
            __mmask16 kept = _mm512_cmp_ps_mask(x, _mm512_set1_ps(cut), _CMP_GE_OQ);
            if (!kept) continue;
            const __m512i place = _mm512_add_epi32(_mm512_set1_epi32(int(j)), _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
            _mm512_storeu_ps(values + count, _mm512_maskz_compress_ps(kept, x));
            _mm512_storeu_si512(places + count, _mm512_maskz_compress_epi32(kept, place));
            count += __builtin_popcount(kept);
            continue;
        }
#endif
        auto kept = load(e + j) >= cut;
        for (Index i = 0; i < WIDTH<T>; i++) {
            values[count] = e[j + i], places[count] = int32_t(j + i);
            count += kept[i] != 0;
        }
    }
    for (Index j = count; j < up(count, WIDTH<T>); j++) values[j] = -INF<T>;
    return count;
}

// -- what is asked for; whole_rows.py has the same fields in the same order

enum Kind : Index { SOFTMAX, ADAPTIVE, ENTMAX, SIGMOID, SOFTPICK, HARD, TOP_K };
constexpr Index SAVED = 4;  // numbers of a row that the backward pass reads again

struct Call {
    Index n_batch, n_heads, n_key_heads, n_queries, n_keys, n_channels, n_values;
    Index kind, causal, window, chunk, n_threads, k, n_coefficients, n_coordinate_heads;
    double scale, cap, eps, min_entropy, min_beta, lowest, highest, through_beta;
    const double* coefficients;
    // [batch, heads, rows, channels] with the strides of the first three in elements
    const void *q, *key, *v, *grad_out;
    Index q_strides[3], k_strides[3], v_strides[3], grad_strides[3];
    const uint8_t* valid;                  // [batch, keys] or null
    const void *factor, *shift, *alpha;    // [batch, heads, queries] or null
    const void* table;                     // [heads, 2 keys - 1] by key minus query or null
    const void* slopes;                    // [batch, heads, queries] or null, with
    const double *t_q, *t_k;               // [batch, coordinate heads, queries or keys]
    const void* dense;                     // [batch, heads, queries, keys] or null
    void *out, *saved;                     // contiguous, as all that follow
    void *dq, *dk, *dv, *d_factor, *d_shift, *d_alpha, *d_table, *d_slopes, *d_t_q, *d_t_k, *d_dense;
};

template <class T> struct Row { T shift, alpha, *saved; };  // of one row
template <class T> struct Grads { T shift = 0, alpha = 0; };

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
        T ln_z = std::log(total<T>(sum)), mean = total<T>(first) / total<T>(sum), beta = inverse_temperature(ln_z - mean).first;
        sum = Vec<T>{};
        for (Index j = 0; j < n; j += WIDTH<T>) sum += exp_of(beta * (load(e + j) - largest));
        saved[0] = beta * largest + std::log(total<T>(sum)), saved[1] = largest + ln_z, saved[2] = largest + mean, saved[3] = beta;
    }

    // The polynomial of adaptive_temperature.py, highest power first, and its derivative.
    std::pair<T, T> inverse_temperature(double entropy) const {
        double x = std::min(std::max(entropy, call.lowest), call.highest), value = 0, slope = 0;
        for (Index i = 0; i < call.n_coefficients; i++) slope = slope * x + value, value = value * x + call.coefficients[i];
        if (!(entropy > call.min_entropy)) return {T(1), T(0)};
        if (value < call.min_beta) return {T(call.min_beta), T(0)};
        return {T(value), T(x == entropy ? slope * call.through_beta : 0)};
    }

    // tau of sum_j max(u_j - tau, 0)^(1 / a) = 1 with u = a (e - largest), a = alpha - 1: Newton's steps from below. Up to
    // alpha 2 they are monotone, so keys that have lost their weight never get it back, and the root over a part of the
    // keys is a bound for that over all; beyond, halvings catch what leaves the bracket.
    void solve_entmax(const T* e, Index n, T largest, Row<T> row) {
        const T a = row.alpha - 1;
        T tau = -1;
        Index count = compact(e, n, largest - 1 / a, values.at, places.at);
        for (Index part = a <= 1 ? 16 : 1; part >= 1; part /= 4) {
            if (part > 1 && count / part < 32) continue;
            T low = tau, high = -std::pow(T(count), -a);
            for (int step = 0; step < 100; step++) {
                if (part == 1 && step < 3 && a <= 1) count = compact(values.at, up(count, WIDTH<T>), largest + tau / a, values.at, places.at);
                Power<T> power{a, largest, tau};
                Vec<T> sum{}, slope{};
                for (Index j = 0; j < up(count / part, WIDTH<T>); j += WIDTH<T>) {
                    auto [p, g] = power(load(values.at + j));
                    sum += p, slope += g;
                }
                const T excess = total<T>(sum) - 1;
                if (excess == 0 || (a <= 1 && excess < 0)) break;
                (excess > 0 ? low : high) = tau;
                T next = tau + excess * a / total<T>(slope);
                if (a > 1 && !(next > low && next < high)) next = (low + high) / 2;
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
        auto gain = m == 0 ? zero : above < T(0.3) ? expm1_of(above < T(0.3) ? above : zero) * at_zero : exp_of(above - m) - at_zero;
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
            d_entropy = inverse_temperature(saved[1] - saved[2]).second * (total<T>(moment) - delta * total<T>(moment_p));
        for (Index j = 0; j < n; j += WIDTH<T>) {
            auto x = load(e + j), dp = load(grad + j), w = load(p + j), d = w * (dp - delta);
            switch (call.kind) {
                case SOFTMAX: if (call.cap > 0) d = x > -INF<T> ? d * (1 - x * x * T(1 / (call.cap * call.cap))) : zero; break;
                case ADAPTIVE: d = saved[3] * d - d_entropy * exp_of(x - saved[1]) * (larger<T>(x, all<T>(-1e4)) - saved[2]); break;
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
                    auto slope = (x > 0 ? exp_of(x - saved[0]) : exp_of(larger<T>(x, all<T>(-2000))) * at_zero) * saved[1];
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

// -- blocks of rows

template <class T> inline const T* at(const void* base, const Index* strides, Index b, Index h, Index i) {
    return static_cast<const T*>(base) + b * strides[0] + h * strides[1] + i * strides[2];
}

// The query rows of one head of one text, a few at a time, over the keys `first` .. `first + width`.
template <class T> struct Block {
    const Call& call;
    const Index offset, wide_k, wide_v, most;  // channels in whole vectors; rows of a block
    Index b = 0, h = 0, first_row = 0, rows = 0, first = 0, width = 0, stride = 0;
    Buffer<T> q, logits, bias, valid, t_k, table;
    Function<T> function;

    Block(const Call& call, Index most, Index longest)
        : call(call), offset(call.n_keys - call.n_queries), wide_k(up(call.n_channels, WIDTH<T>)),
          wide_v(up(call.n_values, WIDTH<T>)), most(most), q(most * wide_k), logits(most * (longest + 16)), bias(longest),
          valid(call.valid ? up(call.n_keys, PANEL<T>) + PANEL<T> : 0), t_k(call.slopes ? longest : 0),
          table(call.table ? 2 * (call.n_keys + margin()) : 0), function(call, longest) {}

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
        if (call.chunk) low = std::max(low, t / call.chunk * call.chunk), high = std::min(high, (t / call.chunk + 1) * call.chunk);
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
            for (Index c = 0; c < call.n_channels; c++) q.at[r * wide_k + c] = at<T>(call.q, call.q_strides, b, h, a + r)[c] * T(call.scale);
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
            t_k.at[j] = first + j < call.n_keys ? T(call.t_k[coordinate_head() * call.n_keys + first + j] - centre()) : 0;
    }

    const T* bias_of(Index r) {
        if (call.table) return table.at + in_table(r);
        if (call.dense) {
            const T* from = static_cast<const T*>(call.dense) + row_number(r) * call.n_keys + first;
            std::copy(from, from + std::min(width, call.n_keys - first), bias.at);
            return bias.at;
        }
        if (!call.slopes) return nullptr;
        const T m = slope(r), t = t_q(r);
        for (Index j = 0; j < width; j += WIDTH<T>) store(bias.at + j, m * (load(t_k.at + j) - t));
        return bias.at;
    }

    // From products to logits: bias, factor and cap, and -inf where hidden. Returns the largest: -inf where the row sees
    // nothing, NaN where a visible logit is not finite.
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

// Keys in panels of PANEL keys, channel by channel, for `Block::scores`; and rows one behind another, filled with zeros.
template <class T> void pack(const void* x, const Index* strides, Index b, Index g, Index first, Index last, Index n, Index channels, T* panels) {
    Index wide = up(channels, WIDTH<T>);
    for (Index j = first; j < last; j++)
        for (Index c = 0; c < channels; c++)
            panels[((j - first) / PANEL<T> * wide + c) * PANEL<T> + (j - first) % PANEL<T>] = j < n ? at<T>(x, strides, b, g, j)[c] : 0;
}
template <class T> void lay_out(const void* x, const Index* strides, Index b, Index g, Index first, Index last, Index n, Index channels, T* rows) {
    Index wide = up(channels, WIDTH<T>);
    for (Index j = first; j < std::min(last, n); j++) std::copy(at<T>(x, strides, b, g, j), at<T>(x, strides, b, g, j) + channels, rows + (j - first) * wide);
}

// Rows whose logits, `buffers` times, fill most of a second-level cache; few are slower for want of reuse.
template <class T> Index rows_at_once(Index longest, Index buffers) {
    Index rows = (768 << 10) / Index(sizeof(T)) / (buffers * std::max<Index>(1, longest)) / 6 * 6;
    return std::min<Index>(48, std::max<Index>(24 / buffers, rows));
}

// -- the two passes

template <class T> void forward_rows(const Call& call, Block<T>& block, Index g, Index a, Index b, const T* panels, const T* v, Index first, T* out) {
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
                    for (Index i = 0; i < count; i++) add_times(out + r * wide, p[i], v_first + function.places.at[i] * wide, wide);
                    continue;
                }
            }
            function.weights(e, block.logits.at + Index(dense.size()) * block.stride, width, row);  // dense rows move up
            dense.push_back(r);
        }
        multiply<T>(dense.size(), width, wide, block.logits.at, block.stride, 1, v_first, wide, sums, wide, true);
        for (size_t d = 0; d < dense.size(); d++) std::copy(sums + d * wide, sums + (d + 1) * wide, out + dense[d] * wide);
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
        const Index part = parts - 1 - task % parts, g = task / parts % call.n_key_heads, b = task / parts / call.n_key_heads;
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
        for (Index a = start; a < end; a += rows) forward_rows(call, block, g, a, std::min(a + rows, end), panels.at, v.at, first, out.at);
    }
}

// A key head of a text with all its rows, which alone add to the gradients of its keys, always in the same order.
template <class T> struct Backward {
    const Call& call;
    const Index b, g, longest, rows;
    Block<T> block;
    const Index wide_k, wide_v;
    Buffer<T> k_panels, v_panels, k, v, dk, dv, d_table, d_t_k, grad_out, grads, p, dq;
    std::vector<Index> dense;

    Backward(const Call& call, Index b, Index g)
        : call(call), b(b), g(g), longest(up(call.n_keys, PANEL<T>)), rows(rows_at_once<T>(longest, 2)),
          block(call, rows, longest + PANEL<T>), wide_k(block.wide_k), wide_v(block.wide_v), k_panels(longest * wide_k),
          v_panels(longest * wide_v), k(longest * wide_k), v(longest * wide_v), dk(longest * wide_k), dv(longest * wide_v),
          d_table(call.table ? 2 * (call.n_keys + block.margin()) : 0), d_t_k(call.slopes ? longest : 0), grad_out(rows * wide_v),
          grads(rows * (longest + 16)), p(longest), dq(2 * rows * wide_k) {}

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
            if (call.table) std::copy(d_table.at + block.margin(), d_table.at + block.margin() + n_table, static_cast<T*>(call.d_table) + head * n_table);
            if (call.slopes) std::copy(d_t_k.at, d_t_k.at + call.n_keys, static_cast<T*>(call.d_t_k) + head * call.n_keys);
        }
        for (Index j = 0; j < call.n_keys; j++) {
            const Index place = (b * call.n_key_heads + g) * call.n_keys + j;
            std::copy(dk.at + j * wide_k, dk.at + j * wide_k + call.n_channels, static_cast<T*>(call.dk) + place * call.n_channels);
            std::copy(dv.at + j * wide_v, dv.at + j * wide_v + call.n_values, static_cast<T*>(call.dv) + place * call.n_values);
        }
    }

    void of_rows(Index a, Index end) {
        block.compute(a, end, k_panels.at, 0);
        const Index n_rows = end - a, width = block.width, stride = block.stride, first = block.first;
        std::fill(dq.at, dq.at + 2 * rows * wide_k, T(0));
        dense.clear();
        for (Index r = 0; r < n_rows; r++) {
            for (Index c = 0; c < call.n_values; c++) grad_out.at[r * wide_v + c] = at<T>(call.grad_out, call.grad_strides, b, block.h, a + r)[c];
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
                static_cast<T*>(call.dq)[block.row_number(r) * call.n_channels + c] = T(call.scale) * dq.at[r * wide_k + c];
    }

    bool of_sparse_row(Index r) {
        Function<T>& function = block.function;
        const Row<T> row = block.row(r);
        T *values = function.values.at, *grad = grads.at, *q = block.q.at + r * wide_k, *dq_r = dq.at + r * wide_k;
        const int32_t* places = function.places.at;
        const Index count = compact(block.logits.at + r * block.stride, block.width, row.saved[0], values, function.places.at);
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

    // The row's factor, with which the gradients of keys and queries are multiplied, its own being logits times gradient.
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
        const T* more = block.bias_of(r);
        if (!more) return;
        const Index limit = call.n_keys - block.first, number = block.row_number(r);
        const T m = call.slopes ? block.slope(r) : 0, t = call.slopes ? block.t_q(r) : 0;
        T *table = d_table.at + (call.table ? block.in_table(r) : 0), of_slope = 0, of_factor = 0, sum = 0;
        T* dense_row = call.dense ? static_cast<T*>(call.d_dense) + number * call.n_keys + block.first : nullptr;
        for (Index i = 0; i < count; i++) {
            const Index j = places ? places[i] : i;
            if (j >= limit) break;
            of_factor += grad[i] * more[j];
            const T d = factor * grad[i];
            sum += d;
            if (call.table) table[j] += d;
            if (dense_row) dense_row[j] = d;
            if (call.slopes) d_t_k.at[block.first + j] += m * d, of_slope += d * (block.t_k.at[j] - t);
        }
        if (call.slopes) static_cast<T*>(call.d_slopes)[number] = of_slope, static_cast<T*>(call.d_t_q)[number] = -m * sum;
        if (call.factor) static_cast<T*>(call.d_factor)[number] += of_factor;
    }
};

template <class T> void backward(const Call& call) {
    const Index tasks = call.n_batch * call.n_key_heads;
#pragma omp parallel for schedule(dynamic, 1) num_threads(call.n_threads)
    for (Index task = 0; task < tasks; task++) Backward<T>(call, task / call.n_key_heads, task % call.n_key_heads).run();
}

extern "C" {
void forward_float(const Call* call) { forward<float>(*call); }
void forward_double(const Call* call) { forward<double>(*call); }
void backward_float(const Call* call) { backward<float>(*call); }
void backward_double(const Call* call) { backward<double>(*call); }
}
