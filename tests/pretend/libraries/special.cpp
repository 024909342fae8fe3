// Functions that CUDA's mathematics has and the host's has not: inverses of the error function, erfcx, and Bessel's I.
//
// Each is computed by Newton's (Halley's) method from what the host does have, or by a rule for integrals: right to some units
// in the last place, which are not those of a card.
#include <cmath>

#define PRETEND_API extern "C" __attribute__((visibility("default")))

namespace
{
const double SLOPE = 2 / std::sqrt(M_PI); // of erf at 0

// A step of Halley's method towards the zero of a function whose second derivative is −2y times its first.
double improved(double y, double error, double slope)
{
    double step = error / slope;
    return y - step / (1 + y * step);
}
} // namespace

PRETEND_API double pretend_erfinv(double x)
{
    if (x >= 1)
        return x == 1 ? INFINITY : NAN;
    if (x <= -1)
        return x == -1 ? -INFINITY : NAN;
    // Winitzki's approximation ("A handy approximation for the error function and its inverse", 2008) to begin with.
    constexpr double A = 0.147;
    double w = -std::log1p(-x * x), t = 2 / (M_PI * A) - w / 2;
    double y = std::copysign(std::sqrt(std::sqrt(t * t + w / A) - t), x);
    for (int i = 0; i < 6; ++i) {
        // Far from 0 the difference of two numbers near 1 would be lost: erfc has it.
        double error = x > 0.5 ? (1 - x) - std::erfc(y) : x < -0.5 ? std::erfc(-y) - (1 + x) : std::erf(y) - x;
        y = improved(y, error, SLOPE * std::exp(-y * y));
    }
    return y;
}

PRETEND_API double pretend_erfcinv(double x)
{
    if (x <= 0)
        return x == 0 ? INFINITY : NAN;
    if (x >= 2)
        return x == 2 ? -INFINITY : NAN;
    if (x > 0.5)
        return pretend_erfinv(1 - x);
    double y = std::sqrt(-std::log(x));
    for (int i = 0; i < 50; ++i)
        y = improved(y, std::erfc(y) - x, -SLOPE * std::exp(-y * y));
    return y;
}

PRETEND_API double pretend_normcdfinv(double p) { return -M_SQRT2 * pretend_erfcinv(2 * p); }

PRETEND_API double pretend_erfcx(double x)
{
    if (x < 25)
        return std::exp(x * x) * std::erfc(x);
    double r = 1 / (x * x); // the first terms of the asymptotic series
    return (1 - r / 2 + 0.75 * r * r) / (x * std::sqrt(M_PI));
}

// I_order(x), the mean of exp(x cos t) cos(order t) over a turn: the trapezoidal rule converges geometrically.
PRETEND_API double pretend_bessel(int order, double x)
{
    constexpr double OVERFLOWS = 714;
    constexpr int POINTS = 512;
    if (x != x)
        return x;
    if (std::fabs(x) > OVERFLOWS)
        return order && x < 0 ? -INFINITY : INFINITY;
    double sum = 0;
    for (int k = 0; k < POINTS; ++k) {
        double t = 2 * M_PI * (k + 0.5) / POINTS;
        sum += std::exp(x * std::cos(t) - std::fabs(x)) * std::cos(order * t);
    }
    return sum / POINTS * std::exp(std::fabs(x));
}
