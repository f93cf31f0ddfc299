// Vectors of the CPU's own width, their exponentials, products of matrices in registers, and lists of what is large.

#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <type_traits>
#include <utility>
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

template <class T> inline Vec<T> load(const T* at) {
    Vec<T> x;
    std::memcpy(&x, at, BYTES);
    return x;
}
template <class T> inline void store(T* at, Vec<T> x) { std::memcpy(at, &x, BYTES); }
template <class T> inline Vec<T> all(T x) { return Vec<T>{} + x; }
template <class T> inline Vec<T> larger(Vec<T> x, Vec<T> y) { return x > y ? x : y; }
template <class T> inline T total(Vec<T> x) {
    T sum = 0;
    for (Index i = 0; i < WIDTH<T>; i++) sum += x[i];
    return sum;
}
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
              1.6666665459e-1f) *
                 r +
             5.0000001201e-1f;
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
                  1.4249322787e-1f) *
                     m -
                 1.6668057665e-1f) *
                    m +
                2.0000714765e-1f) *
                   m -
               2.4999993993e-1f) *
                  m +
              3.3333331174e-1f) *
             m * m * m;
    return m + (p - 0.5f * m * m - exponent * 2.12194440e-4f) + exponent * 0.693359375f;
}
#define LANE_BY_LANE(name, function)                                     \
    inline Vec<double> name(Vec<double> x) {                             \
        for (Index i = 0; i < WIDTH<double>; i++) x[i] = function(x[i]); \
        return x;                                                        \
    }
LANE_BY_LANE(exp_of, std::exp)
LANE_BY_LANE(expm1_of, std::expm1)
LANE_BY_LANE(log_of, std::log)

// -- products

template <class T, int R, int M> void tile(Index inner, const T* a, Index a_row, Index a_step, const T* b, Index b_step,
                                           T* out, Index out_row, bool add) {
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

template <class T, int M> void strip(Index rows, Index inner, const T* a, Index a_row, Index a_step, const T* b,
                                     Index b_step, T* out, Index out_row, bool add) {
    Index r = 0;
    for (; r + 6 <= rows; r += 6)
        tile<T, 6, M>(inner, a + r * a_row, a_row, a_step, b, b_step, out + r * out_row, out_row, add);
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
template <class T> void multiply(Index rows, Index inner, Index width, const T* a, Index a_row, Index a_step,
                                 const T* b, Index b_step, T* out, Index out_row, bool add) {
    constexpr Index DEPTH = 128;  // so many rows of b stay in the first-level cache
    for (Index i = 0; i < inner; i += DEPTH, add = true)
        for (Index c = 0; c < width; c += PANEL<T>) {
            Index depth = std::min(DEPTH, inner - i), vectors = std::min<Index>(VECTORS, (width - c) / WIDTH<T>);
            const T *a_i = a + i * a_step, *b_i = b + i * b_step + c;
            if (vectors == VECTORS)
                strip<T, VECTORS>(rows, depth, a_i, a_row, a_step, b_i, b_step, out + c, out_row, add);
            else
                for (Index m = 0; m < vectors; m++)
                    strip<T, 1>(rows, depth, a_i, a_row, a_step, b_i + m * WIDTH<T>, b_step, out + c + m * WIDTH<T>,
                                out_row, add);
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
            const __m512i place = _mm512_add_epi32(
                _mm512_set1_epi32(int(j)), _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
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
