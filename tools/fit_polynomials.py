#!/usr/bin/env python3
"""The polynomials of tessera/kernels/base/vector_math_fits.h: weighted minimax fits by the exchange algorithm of Remez.

Usage: fit_polynomials.py        (needs mpmath, which torch brings along)
"""

from struct import pack, unpack

from mpmath import binomial, cos, erf, erfc, exp, log, lu_solve, matrix, mp, mpf, nstr, pi, polyval, sqrt, tanh

GRID = 600
POLE = mpf(4)  # kGeluPole


def widest_of_each_sign(errors):
    """Where a sequence of errors is largest between two changes of sign."""
    found = []
    for i, error in enumerate(errors):
        if found and (errors[found[-1]] > 0) == (error > 0):
            if abs(error) > abs(errors[found[-1]]):
                found[-1] = i
        else:
            found.append(i)
    return found


def fit(function, weight, low, high, degree):
    """Coefficients from the constant term up, and the largest weighted error, of the best polynomial on [low, high]."""
    xs = [(low + high) / 2 - (high - low) / 2 * cos(pi * i / GRID) for i in range(GRID + 1)]
    ys, ws = [function(x) for x in xs], [weight(x) for x in xs]
    picked = [round(i * GRID / (degree + 1)) for i in range(degree + 2)]
    for _ in range(30):
        rows = [[xs[p] ** k for k in range(degree + 1)] + [(-1) ** j / ws[p]] for j, p in enumerate(picked)]
        coefficients = list(lu_solve(matrix(rows), matrix([ys[p] for p in picked])))[:-1]
        errors = [(polyval(coefficients[::-1], x) - y) * w for x, y, w in zip(xs, ys, ws)]
        peaks = widest_of_each_sign(errors)
        while len(peaks) > degree + 2:
            peaks.pop(0 if abs(errors[peaks[0]]) < abs(errors[peaks[-1]]) else -1)
        if len(peaks) < degree + 2 or peaks == picked:
            break
        picked = peaks
    return coefficients, max(abs(e) for e in errors)


def rounded(x, single):
    """x as the type of the kernels holds it."""
    return mpf(unpack("f", pack("f", float(x)))[0] if single else float(x))


def mills(a):
    return exp(a * a / 2) * erfc(a / sqrt(mpf(2))) / 2


def slope(h):
    """(Phi(x) - 1/2) / x for h = -x^2/2"""
    return erf(sqrt(-h)) / (2 * sqrt(-2 * h))


def fits(single):
    """(name, function, weight, low, high, degree) of every polynomial."""
    small, edge, top = mpf(10) ** -8, log(2) / 2 * mpf("1.001"), mpf("14.6" if single else "38.8")
    centre, height = mpf("0.375" if single else "0.421875"), 1 / sqrt(2 * pi)
    c = rounded(height, single)
    low, high = 1 / (1 + POLE) - centre, top / (top + POLE) - centre
    place = lambda v: POLE * (v + centre) / (1 - v - centre)
    yield ("kExp", lambda r: (exp(r) - 1 - r) / r**2 if abs(r) > mpf(10) ** -20 else mpf("0.5"),
           lambda r: r**2 / exp(r) + mpf(10) ** -30, -edge, edge, 4 if single else 9)
    yield ("kLog", lambda z: (log((1 + sqrt(z)) / (1 - sqrt(z))) / sqrt(z) - 2) / z, lambda z: z,
           small, mpf("0.02945"), 2 if single else 6)
    yield ("kTanh", lambda z: (tanh(sqrt(z)) / sqrt(z) - 1) / z, lambda z: z / (tanh(sqrt(z)) / sqrt(z)),
           small, mpf("0.3601"), 4 if single else 11)
    yield ("kErf", lambda z: erf(sqrt(z)) / sqrt(z) - 1, lambda z: 1 / (erf(sqrt(z)) / sqrt(z)),
           small / 100, mpf("0.8101"), 6 if single else 11)
    yield ("kLogErfc", lambda t: log(erfc(1 + t)), lambda t: erfc(1 + t) / erf(1 + t),
           mpf("-0.1"), mpf("2.95" if single else "4.95"), 7 if single else 18)
    if not single:
        yield ("kPhi", lambda h: slope(h) - c, lambda h: sqrt(-2 * h) / (0.5 - sqrt(-2 * h) * slope(h)), mpf(-1) / 2, -small, 10)
        yield ("kGeluTail", lambda v: place(v) * mills(place(v)) - c, lambda v: 1 / (place(v) * mills(place(v))), low, high, 20)
    yield ("kSlope", lambda h: slope(h) + height * exp(h) - 2 * c,
           lambda h: sqrt(-2 * h) / max(0.5 - sqrt(-2 * h) * slope(h), sqrt(-2 * h) * height * exp(h)), mpf(-1) / 2, -small, 5 if single else 10)
    yield ("kSlopeTail", lambda v: mills(place(v)) - (height - c) * place(v), lambda v: 1 / (height * place(v)), low, high, 7 if single else 19)


def moved(coefficients, by):
    """The coefficients of p(t + by) for those of p(t)."""
    return [sum(c * binomial(k, j) * by ** (k - j) for k, c in enumerate(coefficients) if k >= j) for j in range(len(coefficients))]


def gelu_pieces():
    """(centre, coefficients, error) of every piece of float gelu. Centres are where the constant term is nearly a float."""
    ends = [mpf(end) for end in (0, 0.5, 1, 2, 3, 5, 7, 11, 14.5)]  # the last is kGeluTop
    for low, high in zip(ends, ends[1:]):
        middle, margin = (low + high) / 2, mpf(10) ** -6 if low else 0
        function = lambda t: mills(middle + t) * (2 * (middle + t) if low else 1)
        coefficients, error = fit(function, lambda t: 1 / function(t), low - middle - margin, high - middle + mpf(10) ** -6, 7)
        moves = [(high - low) * j / 512 for j in range(-16, 17)] if low else [-middle]
        by = min(moves, key=lambda by: abs(polyval(coefficients[::-1], by) - rounded(polyval(coefficients[::-1], by), True)))
        yield middle + by, moved(coefficients, by), error


def print_gelu_pieces():
    pieces = list(gelu_pieces())
    pieces = pieces[2:] + pieces[:2]  # in the order of the last two bits of the exponent of a + 1 and the first of its mantissa
    print("// errors 2^" + ", 2^".join(nstr(log(error, 2), 4) for _, _, error in pieces))
    print("kGeluMiddles: " + ", ".join(nstr(centre, 10) + "f" for centre, _, _ in pieces))
    for k in range(8):
        print(f"kGeluPieces[{k}]: " + ", ".join(nstr(c[k], 10, strip_zeros=False) + "f" for _, c, _ in pieces))


def main():
    mp.dps = 50
    print_gelu_pieces()
    for single in (True, False):
        print(f"// {'float' if single else 'double'}")
        for name, *what in fits(single):
            coefficients, error = fit(*what)
            print(f"// error 2^{nstr(log(error, 2), 4)}\n{name}: " + ", ".join(
                nstr(c, 10 if single else 19, strip_zeros=False) + ("f" if single else "") for c in coefficients))


if __name__ == "__main__":
    main()
