// What the probe asks of the GPU: a kernel whose result is checked in full, and copy times by events.
//
// Every function returns a CUDA runtime error code (0 = success) and writes plain numbers; names and
// words are Python's work. Nothing of the C++ library is linked: host memory is malloc's, sorting is a
// header template, exceptions are off. So the host's libstdc++ does not matter, whichever it is.

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#define H20_EXPORT extern "C" __attribute__((visibility("default")))
#define H20_TRY(call)                                   \
    do {                                                \
        cudaError_t status_ = (call);                   \
        if (status_ != cudaSuccess) return int(status_); \
    } while (0)

namespace {

constexpr int kThreads = 256;

struct DeviceBuffer {
    void* data = nullptr;
    ~DeviceBuffer() { cudaFree(data); }
};

template <typename T>
struct HostArray {
    T* data;
    explicit HostArray(size_t count) : data(static_cast<T*>(std::malloc(count * sizeof(T)))) {}
    ~HostArray() { std::free(data); }
};

struct PinnedBuffer {
    void* data = nullptr;
    ~PinnedBuffer() { cudaFreeHost(data); }
};

struct Event {
    cudaEvent_t handle = nullptr;
    ~Event() {
        if (handle) cudaEventDestroy(handle);
    }
};

// One value per index, cheap on both sides and different for neighbours, so that a lost, repeated or
// shifted block cannot go unseen.
__host__ __device__ inline uint32_t mixed(uint32_t index, uint32_t seed) {
    uint32_t x = index * 2654435761u + seed;
    x ^= x >> 15;
    x *= 2246822519u;
    return x ^ (x >> 13);
}

__global__ void __launch_bounds__(kThreads) fill_mixed(uint32_t* out, uint32_t count, uint32_t seed) {
    // Through shared memory and back in reverse order: barrier and shared memory take part in the result.
    __shared__ uint32_t tile[kThreads];
    const uint32_t mirrored = blockIdx.x * kThreads + (kThreads - 1 - threadIdx.x);
    tile[threadIdx.x] = mixed(mirrored, seed);
    __syncthreads();
    const uint32_t index = blockIdx.x * kThreads + threadIdx.x;
    if (index < count) out[index] = tile[kThreads - 1 - threadIdx.x];
}

}  // namespace

H20_EXPORT int h20_probe_versions(int* driver, int* runtime) {
    H20_TRY(cudaDriverGetVersion(driver));
    H20_TRY(cudaRuntimeGetVersion(runtime));
    return 0;
}

H20_EXPORT const char* h20_probe_error_name(int code) { return cudaGetErrorName(cudaError_t(code)); }

// Fill `count` words on the device, read all of them back, count those that are not the expected value.
H20_EXPORT int h20_probe_kernel(int device, uint32_t count, uint32_t seed, uint64_t* wrong) {
    H20_TRY(cudaSetDevice(device));
    DeviceBuffer buffer;
    H20_TRY(cudaMalloc(&buffer.data, size_t(count) * sizeof(uint32_t)));
    H20_TRY(cudaMemset(buffer.data, 0, size_t(count) * sizeof(uint32_t)));
    const uint32_t blocks = (count + kThreads - 1) / kThreads;
    fill_mixed<<<blocks, kThreads>>>(static_cast<uint32_t*>(buffer.data), count, seed);
    H20_TRY(cudaGetLastError());
    H20_TRY(cudaDeviceSynchronize());
    HostArray<uint32_t> host(count);
    if (!host.data) return int(cudaErrorMemoryAllocation);
    H20_TRY(cudaMemcpy(host.data, buffer.data, size_t(count) * sizeof(uint32_t), cudaMemcpyDeviceToHost));
    *wrong = 0;
    for (uint32_t i = 0; i < count; ++i) *wrong += host.data[i] != mixed(i, seed);
    return 0;
}

// Median time in milliseconds of one copy of `bytes`. kind: 0 device to device, 1 host to device, 2 back.
H20_EXPORT int h20_probe_copy_ms(int device, uint64_t bytes, int kind, int repeats, float* median_ms) {
    H20_TRY(cudaSetDevice(device));
    DeviceBuffer first, second;
    PinnedBuffer host;
    H20_TRY(cudaMalloc(&first.data, bytes));
    H20_TRY(cudaMemset(first.data, 0x5a, bytes));
    if (kind == 0) {
        H20_TRY(cudaMalloc(&second.data, bytes));
    } else {
        H20_TRY(cudaMallocHost(&host.data, bytes));
    }
    void* to = kind == 0 ? second.data : kind == 1 ? first.data : host.data;
    const void* from = kind == 1 ? host.data : first.data;
    Event start, stop;
    H20_TRY(cudaEventCreate(&start.handle));
    H20_TRY(cudaEventCreate(&stop.handle));
    for (int i = 0; i < 3; ++i) H20_TRY(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault));
    HostArray<float> times(repeats);
    if (!times.data) return int(cudaErrorMemoryAllocation);
    for (int i = 0; i < repeats; ++i) {
        H20_TRY(cudaEventRecord(start.handle));
        H20_TRY(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault));
        H20_TRY(cudaEventRecord(stop.handle));
        H20_TRY(cudaEventSynchronize(stop.handle));
        H20_TRY(cudaEventElapsedTime(&times.data[i], start.handle, stop.handle));
    }
    std::sort(times.data, times.data + repeats);
    *median_ms = times.data[repeats / 2];
    return 0;
}
