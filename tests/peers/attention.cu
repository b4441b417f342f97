// Attention in the manner of FlashAttention-2, plainly: a thread has a row, a block a tile of rows.
// query, output: (heads, n, d); key, value: (heads / group, m, d); logsumexp: (heads, n). d_query is added to.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int ROWS = 64, FEATURES = 64;  // of a tile; the most that a row has

struct Problem {
    int group, n, m, d, causal;
    float scale, softcap;  // 0: none
};

__device__ bool visible(int i, int j, const Problem &p) { return i < p.n && j < p.m && (!p.causal || j <= i); }

__device__ float dot(const float *x, const float *y, const Problem &p) {
    float sum = 0;
    for (int a = 0; a < p.d; a++) sum += x[a] * y[a];
    return sum;
}

__device__ float score(float product, const Problem &p, float &slope) {
    float scaled = product * p.scale, t = p.softcap ? tanhf(scaled / p.softcap) : 0;
    slope = 1 - t * t;
    return p.softcap ? p.softcap * t : scaled;
}

template <typename T>
__device__ void load(float (*tile)[FEATURES], const T *rows, int first, int count, const Problem &p) {
    for (int e = threadIdx.x; e < ROWS * p.d; e += ROWS) {
        int row = first + e / p.d, a = e % p.d;
        tile[e / p.d][a] = row < count ? float(rows[row * p.d + a]) : 0;
    }
}

template <typename T>
__global__ void forward(T *output, float *logsumexp, const T *query, const T *key, const T *value, Problem p) {
    __shared__ float keys[ROWS][FEATURES], values[ROWS][FEATURES];
    int head = blockIdx.y, of_keys = head / p.group, i = blockIdx.x * ROWS + threadIdx.x;
    query += head * p.n * p.d, output += head * p.n * p.d, logsumexp += head * p.n;
    key += of_keys * p.m * p.d, value += of_keys * p.m * p.d;
    float q[FEATURES], sum[FEATURES] = {}, scores[ROWS], largest = -INFINITY, total = 0, slope;
    for (int a = 0; a < p.d; a++) q[a] = i < p.n ? float(query[i * p.d + a]) : 0;
    for (int first = 0; first < p.m; first += ROWS) {
        if (p.causal && first > (blockIdx.x + 1) * ROWS - 1) break;
        load(keys, key, first, p.m, p);
        load(values, value, first, p.m, p);
        __syncthreads();
        float highest = largest;
        for (int j = 0; j < ROWS; j++) {
            scores[j] = visible(i, first + j, p) ? score(dot(q, keys[j], p), p, slope) : -INFINITY;
            highest = fmaxf(highest, scores[j]);
        }
        if (highest > -INFINITY) {
            float shrink = expf(largest - highest);
            total *= shrink;
            for (int a = 0; a < p.d; a++) sum[a] *= shrink;
            for (int j = 0; j < ROWS; j++) {
                float weight = expf(scores[j] - highest);
                total += weight;
                for (int a = 0; a < p.d; a++) sum[a] += float(T(weight)) * values[j][a];
            }
            largest = highest;
        }
        __syncthreads();
    }
    if (i >= p.n) return;
    for (int a = 0; a < p.d; a++) output[i * p.d + a] = T(total ? sum[a] / total : 0);
    logsumexp[i] = largest + logf(total);
}

template <typename T>
__global__ void backward(float *d_query, T *d_key, T *d_value, const T *d_output, const float *d_logsumexp,
                         const T *output, const float *logsumexp, const T *query, const T *key, const T *value,
                         Problem p) {
    __shared__ float queries[ROWS][FEATURES], cotangents[ROWS][FEATURES], delta[ROWS], lse[ROWS];
    int of_keys = blockIdx.y, j = blockIdx.x * ROWS + threadIdx.x;
    key += of_keys * p.m * p.d, value += of_keys * p.m * p.d;
    d_key += of_keys * p.m * p.d, d_value += of_keys * p.m * p.d;
    float k[FEATURES], v[FEATURES], d_k[FEATURES] = {}, d_v[FEATURES] = {}, slope;
    for (int a = 0; a < p.d; a++) {
        k[a] = j < p.m ? float(key[j * p.d + a]) : 0;
        v[a] = j < p.m ? float(value[j * p.d + a]) : 0;
    }
    for (int head = of_keys * p.group; head < (of_keys + 1) * p.group; head++) {
        for (int first = 0; first < p.n; first += ROWS) {
            int row = head * p.n + first + threadIdx.x;
            load(queries, query + head * p.n * p.d, first, p.n, p);
            load(cotangents, d_output + head * p.n * p.d, first, p.n, p);
            if (first + threadIdx.x < p.n) {
                float sum = -d_logsumexp[row];
                for (int a = 0; a < p.d; a++) sum += float(d_output[row * p.d + a]) * float(output[row * p.d + a]);
                delta[threadIdx.x] = sum;
                lse[threadIdx.x] = logsumexp[row];
            }
            __syncthreads();
            for (int r = 0; r < ROWS; r++) {
                if (!visible(first + r, j, p)) continue;
                float weight = expf(score(dot(queries[r], k, p), p, slope) - lse[r]);
                float d_score = weight * (dot(cotangents[r], v, p) - delta[r]) * slope * p.scale;
                for (int a = 0; a < p.d; a++) {
                    d_v[a] += float(T(weight)) * cotangents[r][a];
                    d_k[a] += float(T(d_score)) * queries[r][a];
                    atomicAdd(&d_query[(head * p.n + first + r) * p.d + a], float(T(d_score)) * k[a]);
                }
            }
            __syncthreads();
        }
    }
    if (j >= p.m) return;
    for (int a = 0; a < p.d; a++) d_key[j * p.d + a] = T(d_k[a]), d_value[j * p.d + a] = T(d_v[a]);
}

#define OF(T, name)                                                                                                   \
    extern "C" int forward_##name(T *output, float *logsumexp, const T *query, const T *key, const T *value,          \
                                  int heads, Problem p) {                                                             \
        forward<<<dim3((p.n + ROWS - 1) / ROWS, heads), ROWS>>>(output, logsumexp, query, key, value, p);             \
        return cudaGetLastError();                                                                                    \
    }                                                                                                                 \
    extern "C" int backward_##name(float *d_query, T *d_key, T *d_value, const T *d_output, const float *d_logsumexp, \
                                   const T *output, const float *logsumexp, const T *query, const T *key,             \
                                   const T *value, int heads, Problem p) {                                            \
        backward<<<dim3((p.m + ROWS - 1) / ROWS, heads / p.group), ROWS>>>(                                           \
            d_query, d_key, d_value, d_output, d_logsumexp, output, logsumexp, query, key, value, p);                 \
        return cudaGetLastError();                                                                                    \
    }

OF(float, float32)
OF(__half, float16)
OF(__nv_bfloat16, bfloat16)
