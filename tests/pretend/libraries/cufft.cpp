// cuFFT of the pretend device: transforms by sums over the factors of their lengths, put on the plan's stream.
//
// Strict about: plans that are not there, are made twice or not at all; lengths, kinds and directions; addresses that are no
// complex number's; a plan whose workspace nobody gave, and which writes over it. Of complex numbers that become real ones
// nothing is left, as in any transform of cuFFT's out of place. A plan is made with memory of the device, so not in a capture.
// Left out: several devices, half precision and callbacks (cufftXt…), real transforms in place, and what cuFFT rounds.
#include "on_stream.h"
#include <cmath>
#include <complex>
#include <cuda_runtime_api.h>
#include <map>
#include <mutex>
#include <vector>

using namespace pretend;
using Complex = std::complex<double>;
using Complex32 = std::complex<float>;
using Stride = long long;

namespace
{
constexpr int VERSION = 11401;
constexpr int MOST_DIMENSIONS = 3;
constexpr int FORWARD = -1, INVERSE = 1;
enum Status {
    SUCCESS,
    INVALID_PLAN,
    INVALID_TYPE = 3,
    INVALID_VALUE,
    INTERNAL_ERROR,
    EXEC_FAILED,
    INVALID_SIZE = 8,
    NO_WORKSPACE = 13,
    NOT_IMPLEMENTED
};
enum Kind { C2C = 0x29, R2C, C2R = 0x2c, Z2Z = 0x69, D2Z, Z2D = 0x6c };
constexpr int TWOFOLD = 0x40; // in a kind

// How one side of a plan lies in memory.
struct Side {
    Stride extents[MOST_DIMENSIONS], step, distance;

    Stride at(int dimensions, const int *place, int batch) const
    {
        Stride row = 0;
        for (int i = 0; i < dimensions; ++i)
            row = row * extents[i] + place[i];
        return row * step + batch * distance;
    }
};

struct Plan {
    void *stream = nullptr, *workspace = nullptr;
    void *constants = nullptr; // what it keeps on the device; none before it is made
    bool finds_workspace = true;
    size_t needs = 0;
    int kind = 0, dimensions = 0, lengths[MOST_DIMENSIONS] = {}, batches = 0;
    Side in{}, out{};

    int last() const { return lengths[dimensions - 1]; }

    int count() const
    {
        int product = 1;
        for (int i = 0; i < dimensions; ++i)
            product *= lengths[i];
        return product;
    }

    void place(int number, int *to) const
    {
        for (int i = dimensions - 1; i >= 0; --i) {
            to[i] = number % lengths[i];
            number /= lengths[i];
        }
    }
};

std::mutex calls;
std::map<int, Plan> plans;

// One line: as many lines as the length's least factor, and sums over them. `roots` are those of the whole line.
void transform(const Complex *in, Stride step, Complex *out, int n, const std::vector<Complex> &roots)
{
    if (n == 1) {
        *out = *in;
        return;
    }
    int factor = 2;
    while (n % factor)
        factor += 1;
    int rest = n / factor;
    for (int i = 0; i < factor; ++i)
        transform(in + i * step, step * factor, out + i * rest, rest, roots);
    std::vector<Complex> parts(factor);
    Stride between = (Stride)roots.size() / n;
    for (int k = 0; k < rest; ++k) {
        for (int i = 0; i < factor; ++i)
            parts[i] = out[k + i * rest];
        for (int j = 0; j < factor; ++j) {
            Complex sum = 0;
            for (int i = 0; i < factor; ++i)
                sum += parts[i] * roots[(Stride)i * (k + j * rest) % n * between];
            out[k + j * rest] = sum;
        }
    }
}

void transform_along(std::vector<Complex> &all, int n, Stride step, int direction)
{
    std::vector<Complex> roots(n), line(n);
    for (int i = 0; i < n; ++i)
        roots[i] = std::polar(1.0, direction * 2 * M_PI * i / n);
    for (size_t first = 0; first < all.size(); ++first) {
        if (first / step % n)
            continue;
        transform(&all[first], step, line.data(), n, roots);
        for (int i = 0; i < n; ++i)
            all[first + i * step] = line[i];
    }
}

template <typename T> void give(Complex value, T &to) { to = (T)value.real(); }
template <typename T> void give(Complex value, std::complex<T> &to) { to = (std::complex<T>)value; }

// From real numbers half of the result is told, and to real numbers half of the input: the other is its mirror image.
template <typename In, typename Out> void execute(const Plan &plan, In *in, Out *out, int direction)
{
    constexpr bool from_half = std::is_floating_point<Out>::value, to_half = std::is_floating_point<In>::value;
    int place[MOST_DIMENSIONS], half = plan.last() / 2;
    int &last = place[plan.dimensions - 1];
    memset(plan.workspace, 0xff, plan.needs);
    std::vector<Complex> all(plan.count());
    for (int batch = 0; batch < plan.batches; ++batch) {
        for (size_t i = 0; i < all.size(); ++i) {
            plan.place(i, place);
            bool mirrored = from_half && last > half;
            for (int d = 0; mirrored && d < plan.dimensions; ++d)
                place[d] = (plan.lengths[d] - place[d]) % plan.lengths[d];
            Complex found = in[plan.in.at(plan.dimensions, place, batch)];
            all[i] = mirrored ? std::conj(found) : found;
        }
        Stride step = 1;
        for (int d = plan.dimensions - 1; d >= 0; step *= plan.lengths[d], --d)
            transform_along(all, plan.lengths[d], step, direction);
        for (size_t i = 0; i < all.size(); ++i) {
            plan.place(i, place);
            if (!to_half || last <= half)
                give(all[i], out[plan.out.at(plan.dimensions, place, batch)]);
            if (from_half && last <= half)
                in[plan.in.at(plan.dimensions, place, batch)] = In(NAN);
        }
    }
}

template <typename In, typename Out> int put(int handle, int kind, In *in, Out *out, int direction)
{
    std::lock_guard<std::mutex> locked(calls);
    auto found = plans.find(handle);
    if (found == plans.end() || !found->second.constants)
        return INVALID_PLAN;
    const Plan &plan = found->second;
    size_t alignment = kind & TWOFOLD ? sizeof(Complex) : sizeof(Complex32);
    if (plan.kind != kind)
        return INVALID_TYPE;
    if (direction != FORWARD && direction != INVERSE)
        return INVALID_VALUE;
    if (!in || !out || (size_t)in % alignment || (size_t)out % alignment) {
        fprintf(stderr, "[pretend] cuFFT: addresses %p and %p are not those of complex numbers\n", in, out);
        return INVALID_VALUE;
    }
    if (!plan.workspace)
        return NO_WORKSPACE;
    if (sizeof(In) != sizeof(Out) && (void *)in == (void *)out)
        return NOT_IMPLEMENTED;
    return refused(plan.stream, [=] { execute(plan, in, out, direction); }) ? EXEC_FAILED : SUCCESS;
}

// One side as it lies if nobody says otherwise: one number behind the other.
Side dense(const Plan &plan, bool half)
{
    Side side{};
    side.step = side.distance = 1;
    for (int i = 0; i < plan.dimensions; ++i) {
        side.extents[i] = half && i == plan.dimensions - 1 ? plan.last() / 2 + 1 : plan.lengths[i];
        side.distance *= side.extents[i];
    }
    return side;
}

Side told(const Plan &plan, const int *extents, int step, int distance)
{
    Side side{};
    side.step = step;
    side.distance = distance;
    std::copy(extents, extents + plan.dimensions, side.extents);
    return side;
}

int make(int handle, const Plan &wanted, size_t *needs)
{
    std::lock_guard<std::mutex> locked(calls);
    auto found = plans.find(handle);
    if (found == plans.end() || found->second.constants)
        return INVALID_PLAN;
    Plan plan = wanted;
    plan.stream = found->second.stream;
    plan.finds_workspace = found->second.finds_workspace;
    plan.needs = (size_t)plan.count() * plan.batches * (plan.kind & TWOFOLD ? sizeof(Complex) : sizeof(Complex32));
    if (cudaMalloc(&plan.constants, plan.needs))
        return INTERNAL_ERROR;
    if (plan.finds_workspace)
        plan.workspace = plan.constants;
    found->second = plan;
    *needs = plan.needs;
    return SUCCESS;
}
} // namespace

PRETEND_API int cufftGetVersion(int *version)
{
    *version = VERSION;
    return SUCCESS;
}

PRETEND_API int cufftCreate(int *to)
{
    static int made = 0;
    std::lock_guard<std::mutex> locked(calls);
    *to = ++made;
    plans[made] = Plan{};
    return SUCCESS;
}

PRETEND_API int cufftDestroy(int handle)
{
    std::lock_guard<std::mutex> locked(calls);
    auto found = plans.find(handle);
    if (found == plans.end())
        return INVALID_PLAN;
    cudaFree(found->second.constants);
    plans.erase(found);
    return SUCCESS;
}

PRETEND_API int cufftSetAutoAllocation(int handle, int finds_workspace)
{
    std::lock_guard<std::mutex> locked(calls);
    auto found = plans.find(handle);
    if (found == plans.end() || found->second.constants)
        return INVALID_PLAN;
    found->second.finds_workspace = finds_workspace;
    return SUCCESS;
}

PRETEND_API int cufftSetWorkArea(int handle, void *workspace)
{
    std::lock_guard<std::mutex> locked(calls);
    auto found = plans.find(handle);
    if (found == plans.end())
        return INVALID_PLAN;
    found->second.workspace = workspace;
    return SUCCESS;
}

PRETEND_API int cufftSetStream(int handle, void *stream)
{
    std::lock_guard<std::mutex> locked(calls);
    auto found = plans.find(handle);
    if (found == plans.end())
        return INVALID_PLAN;
    found->second.stream = stream;
    return SUCCESS;
}

PRETEND_API int cufftMakePlanMany(int handle, int dimensions, int *lengths, int *in_extents, int in_step,
                                  int in_distance, int *out_extents, int out_step, int out_distance, int kind,
                                  int batches, size_t *needs)
{
    if (kind != C2C && kind != R2C && kind != C2R && kind != Z2Z && kind != D2Z && kind != Z2D)
        return INVALID_TYPE;
    if (dimensions < 1 || dimensions > MOST_DIMENSIONS)
        return INVALID_VALUE;
    if (batches < 1 || *std::min_element(lengths, lengths + dimensions) < 1)
        return INVALID_SIZE;
    Plan plan;
    plan.kind = kind;
    plan.dimensions = dimensions;
    plan.batches = batches;
    std::copy(lengths, lengths + dimensions, plan.lengths);
    bool is_told = in_extents && out_extents; // or steps and distances mean nothing
    plan.in = is_told ? told(plan, in_extents, in_step, in_distance) : dense(plan, kind == C2R || kind == Z2D);
    plan.out = is_told ? told(plan, out_extents, out_step, out_distance) : dense(plan, kind == R2C || kind == D2Z);
    return make(handle, plan, needs);
}

PRETEND_API int cufftMakePlan1d(int handle, int length, int kind, int batches, size_t *needs)
{
    return cufftMakePlanMany(handle, 1, &length, nullptr, 1, 0, nullptr, 1, 0, kind, batches, needs);
}

PRETEND_API int cufftExecC2C(int handle, Complex32 *in, Complex32 *out, int direction)
{
    return put(handle, C2C, in, out, direction);
}

PRETEND_API int cufftExecZ2Z(int handle, Complex *in, Complex *out, int direction)
{
    return put(handle, Z2Z, in, out, direction);
}

PRETEND_API int cufftExecR2C(int handle, float *in, Complex32 *out) { return put(handle, R2C, in, out, FORWARD); }
PRETEND_API int cufftExecD2Z(int handle, double *in, Complex *out) { return put(handle, D2Z, in, out, FORWARD); }
PRETEND_API int cufftExecC2R(int handle, Complex32 *in, float *out) { return put(handle, C2R, in, out, INVERSE); }
PRETEND_API int cufftExecZ2D(int handle, Complex *in, double *out) { return put(handle, Z2D, in, out, INVERSE); }
