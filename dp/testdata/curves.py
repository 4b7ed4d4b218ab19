"""Prints curves_table_test.go: reference values of the accounting in mpmath.

    pip install mpmath numpy && python curves.py | gofmt > ../curves_table_test.go  (an hour)

They share no formula with the package where there is another one:
  joint    conditioning on the Gaussian part, where the rest has a closed form in incomplete gamma functions
           (the package: a contour integral)
  replace  conditioning on the Gaussian part and the added rows; where that is marked "line", the contour
           integral on another line, by another rule, as there is no other form that reaches the digits
  epsilon  the root of these
  renyi    the formulas as the papers print them, with enough digits to survive their cancellation
Working precision 45 digits or more; 25 are printed.
"""
from mpmath import mp, mpf, quad, exp, log, sqrt, pi, erfc, inf, findroot, nstr, npdf, log1p, mpc

mp.dps = 45


def chi2(k, t, upper):
    """The distribution function of chi-square with k degrees of freedom, or its complement."""
    if t <= 0:
        return mpf(1 if upper else 0)
    a, x = mpf(k) / 2, t / 2
    front = exp(a * log(x) - x - mp.loggamma(a))
    tiny = mpf(2) ** (-mp.prec - 10)
    if x < a + 1:  # series of positive terms
        term = total = 1 / a
        n = a
        while term > total * tiny:
            n += 1
            term *= x / n
            total += term
        p = front * total
        return 1 - p if upper else p
    b = x + 1 - a  # Legendre's continued fraction, by Lentz
    c, d = 1 / tiny, 1 / b
    h = d
    i = 0
    while True:
        i += 1
        an = -i * (i - a)
        b += 2
        d = an * d + b
        d = 1 / (d if d else tiny)
        c = b + an / c
        c = c if c else tiny
        h *= d * c
        if abs(d * c - 1) < tiny * 4:
            break
    q = front * h
    return q if upper else 1 - q


def rows(eps, k, g, removed):
    """delta(eps) of k rows, every real eps."""
    g = mpf(g)
    if removed:
        t = eps - mpf(k) / 2 * log(1 - 1 / g)
        if t <= 0:
            return 1 - exp(eps)
        return chi2(k, 2 * t * (g - 1), True) - exp(eps) * chi2(k, 2 * t * g, True)
    t = mpf(k) / 2 * log(1 + 1 / g) - eps
    if t <= 0:
        return mpf(0)
    return chi2(k, 2 * t * (g + 1), False) - exp(eps) * chi2(k, 2 * t * g, False)


def gauss(eps, mu):
    a, b = eps / mu - mu / 2, eps / mu + mu / 2
    return erfc(a / sqrt(2)) / 2 - exp(eps) * erfc(b / sqrt(2)) / 2


def peak(f, lo, hi, n):
    """where the positive f is largest, on a grid, and the interval outside which it is negligible."""
    mp.dps = 25
    xs = [lo + (hi - lo) * i / n for i in range(n + 1)]
    ys = [f(x) for x in xs]
    mp.dps = 45
    top = max(ys)
    if top <= 0:
        return None
    live = [i for i, y in enumerate(ys) if y > top * mpf(10) ** -34]
    return xs[max(live[0] - 1, 0)], xs[min(live[-1] + 1, n)], top


def over_gaussian(f, mu, kinks=()):
    """E f(l) for l ~ N(mu^2/2, mu^2)."""
    w = lambda z: npdf(z) * f(mu * mu / 2 + mu * z)
    found = peak(w, mpf(-45), mpf(45), 120)
    if found is None:
        return mpf(0)  # below 10^-400
    lo, hi, top = found
    cuts = [lo + (hi - lo) * i / 12 for i in range(13)] + [k for k in kinks if lo < k < hi]
    return top * quad(lambda z: w(z) / top, sorted(cuts))  # quad's tolerance is absolute


def joint(eps, mu, k, g, removed):
    eps, mu = mpf(eps), mpf(mu)
    if k == 0:
        return gauss(eps, mu)
    if mu == 0:
        return rows(eps, k, g, removed)
    c = mpf(k) / 2 * log(1 - 1 / mpf(g)) if removed else mpf(k) / 2 * log(1 + 1 / mpf(g))
    return over_gaussian(lambda l: rows(eps - l, k, g, removed), mu, [(eps - c - mu * mu / 2) / mu])


def line(eps, mu, k, g):
    """Replace, by inversion on a vertical line."""
    eps, mu, g = mpf(eps), mpf(mu), mpf(g)
    c = mpf(k) / 2 * log(1 - 1 / g**2)
    f = lambda s: mu**2 * s * (1 + s) / 2 + s * (c - eps) - mpf(k) / 2 * (log(1 - s / (g - 1)) + log(1 + s / (g + 1))) - log(s) - log(1 + s)
    d = lambda s: mu**2 * (s + mpf(1) / 2) + c - eps + mpf(k) / 2 * (1 / (g - 1 - s) - 1 / (g + 1 + s)) - 1 / s - 1 / (1 + s)
    lo, hi = mpf(10) ** -9, (g - 1) * (1 - mpf(10) ** -9)
    for _ in range(60):
        mid = (lo + hi) / 2
        lo, hi = (mid, hi) if d(mid) < 0 else (lo, mid)
    s = lo * mpf("0.9")
    top = f(s)
    h = lambda y: exp(f(mpc(s, y)) - top).real
    width = 1 / sqrt(mu**2 + mpf(k) / 2 / (g - 1 - s) ** 2 + 1 / s**2)
    end = width
    while abs(exp(f(mpc(s, end)) - top)) > mpf(10) ** -40:
        end *= mpf("1.3")
    n = int(min(end / width * 4, 400)) + 1
    return exp(top) / pi * quad(h, [end * i / n for i in range(n + 1)])


def replace(eps, mu, k, g):
    eps, mu = mpf(eps), mpf(mu)
    lw = lambda r: mpf(k) / 2 * log(1 + 1 / mpf(g)) - r / 2 / (mpf(g) + 1)
    dens = lambda r: exp((mpf(k) / 2 - 1) * log(r / 2) - r / 2 - mp.loggamma(mpf(k) / 2)) / 2
    from numpy.polynomial.legendre import leggauss

    x, w = [], []
    mp.dps = 30
    n = 140
    xs, _ = leggauss(n)
    # Newton polishing of the double nodes to full precision
    for a in xs:
        a = mpf(float(a))
        for _ in range(3):
            p, q = mpf(1), a
            for j in range(2, n + 1):
                p, q = q, ((2 * j - 1) * a * q - (j - 1) * p) / j
            dp = n * (a * q - p) / (a * a - 1)
            a -= q / dp
        p, q = mpf(1), a
        for j in range(2, n + 1):
            p, q = q, ((2 * j - 1) * a * q - (j - 1) * p) / j
        dp = n * (a * q - p) / (a * a - 1)
        x.append(a)
        w.append(2 / ((1 - a * a) * dp * dp))
    zlo, zhi = mpf(-9), mpf(12)
    s = sqrt(mpf(2 * k))
    rlo, rhi = max(k - 9 * s, mpf(0)), k + 10 * s + 50
    ulo, uhi = sqrt(rlo), sqrt(rhi)
    total = mpf(0)
    for a, wa in zip(x, w):
        z = zlo + (zhi - zlo) * (a + 1) / 2
        inner = mpf(0)
        for b, wb in zip(x, w):
            u = ulo + (uhi - ulo) * (b + 1) / 2
            inner += wb * 2 * u * dens(u * u) * rows(eps - mu * mu / 2 - mu * z - lw(u * u), k, g, True)
        total += wa * npdf(z) * inner
    mp.dps = 45
    return total * (zhi - zlo) / 2 * (uhi - ulo) / 2


def renyi(kind, alpha, p, c2=0):
    mp.dps = 120
    a, p = mpf(alpha), mpf(p)
    k = mpf(1) / 4 if c2 == 0 else ((mpf(c2) - 1) / c2) ** 2 / 4
    if kind == "gaussian":
        r = a * p * p / 2
    elif kind == "pure":
        r = min(p, a * p * p / 2)
    elif kind == "laplace":
        r = log(a / (2 * a - 1) * exp((a - 1) / p) + (a - 1) / (2 * a - 1) * exp(-a / p)) / (a - 1)
    elif kind == "sketch-row":
        r = (a * log(1 - 1 / p) - log(1 - a / p)) / (2 * (a - 1))
    elif kind == "sketch-row-replace":
        r = (a * log(1 - 1 / p) - log(1 - a / p) + a * log(1 + 1 / p) - log(1 + a / p)) / (2 * (a - 1))
    elif kind == "fastmix-row":
        r = (a * log(1 - 1 / p - k / p**2) - log(1 - a / p - k * a**2 / p**2)) / (2 * (a - 1))
    mp.dps = 45
    return r


def tight(terms, delta=None, eps=None):
    """Canonne, Kamath, Steinke at the best order, with 40 digits."""
    top = inf
    for kind, _, p, *c2 in terms:
        if kind.startswith("sketch"):
            top = min(top, mpf(p))
        if kind == "fastmix-row":
            k = mpf(1) / 4 if not c2 or c2[0] == 0 else ((mpf(c2[0]) - 1) / c2[0]) ** 2 / 4
            top = min(top, p * (sqrt(1 + 4 * k) - 1) / (2 * k) if k else mpf(p))

    def f(t):
        x = exp(t)
        if 1 + x >= top:
            return inf
        r = sum(n * renyi(kind, 1 + x, p, *c2) for kind, n, p, *c2 in terms)
        if delta is not None:
            return r + log(x / (1 + x)) - (log1p(x) + log(mpf(delta))) / x
        return x * (r - mpf(eps)) + x * log(x) - (1 + x) * log1p(x)

    lo, hi = mpf(-30), mpf(40) if top == inf else log(top - 1)
    for _ in range(12):
        ts = [lo + (hi - lo) * i / 40 for i in range(41)]
        vs = [f(t) for t in ts]
        i = vs.index(min(vs))
        lo, hi = ts[max(i - 1, 0)], ts[min(i + 1, 40)]
    return min(vs)


def show(x):
    return '"' + nstr(x, 25, min_fixed=-5, max_fixed=5) + '"'


JOINT = [  # epsilon, mu, rows, gamma
    (1, 0.2, 216, 327.2), (0.4, 0.1, 100, 100), (3, 0.5, 60, 20), (0.5, 0.001, 20, 50), (1, 0.01, 72, 30),
    (60, 0.5, 500, 3), (2, 0.3, 12, 4), (1, 0.0001, 72, 30), (0.3, 0.05, 1, 3), (0.1, 0.02, 1, 1.5),
    (2, 0.0001, 8, 6), (1, 1, 200, 50), (10, 2, 100, 30), (30, 4, 264, 40), (0.1, 0.01, 1000, 2200),
    (1, 0.2, 20000, 2200), (5, 0.7, 792, 242.15), (0, 0.2, 216, 327.2), (0, 0.001, 12, 40), (20, 0.4, 50, 2),
    (4, 0.2, 100, 100), (8, 0.2, 216, 327.2), (12, 0.05, 60, 20), (40, 0.3, 264, 30), (1, 0.3, 4, 1000000.0),
    (0.02, 0.005, 300, 50000.0), (6, 0, 20, 5), (1, 0, 100, 20), (0.3, 0, 1000, 300), (0.05, 0, 2, 8),
    (25, 0, 100, 20), (1, 0, 216, 2000), (0.2, 0.5, 6, 1.01), (15, 1, 18, 1.2),
    (0.39, 1e-5, 33570, 1403), (0.19, 0, 277260, 16067), (0.134, 0, 10000000, 100000.0), (380, 0, 10000000, 100),
    (0.47, 0, 1000000000, 100000.0), (1.37, 0, 1000000000, 100000.0),
]
REPLACE = [  # epsilon, mu, rows, gamma, by the two-dimensional sum
    (1, 0.3, 792, 242.15, True), (2, 0.5, 60, 20, True), (1, 0.2, 216, 327.2, True), (0.5, 0.4, 100, 50, True),
    (2, 0.01, 60, 20, False), (2, 0.003, 12, 5, False), (1, 0.001, 8, 10, False), (30, 0.5, 60, 20, False), (1, 0.01, 216, 100, False),
]
EPSILON = [  # delta, mu, rows, gamma, adjacency
    ("1e-6", 0.2, 216, 327.2), ("1e-6", 0.3, 60, 20), ("1e-10", 0.05, 72, 30), ("1e-3", 0.5, 12, 4), ("1e-20", 0.1, 100, 100), ("1e-6", 0, 100, 20),
    ("1e-100", 0, 216, 327.2), ("1e-8", 1.5, 264, 150),
]
RENYI = [
    ("gaussian", 3.5, 0.7), ("pure", 1.5, 0.1), ("pure", 50, 0.1),
    ("laplace", 2, 1), ("laplace", 32, 0.5), ("laplace", 1.0000001, 1000), ("laplace", 7, 1e6), ("laplace", 1.00001, 0.01), ("laplace", 1e6, 3),
    ("sketch-row", 1.5, 5), ("sketch-row", 1.0001, 100), ("sketch-row", 1.0000000001, 2), ("sketch-row", 3, 1e12), ("sketch-row", 1.00001, 1e9),
    ("sketch-row", 99.9, 100), ("sketch-row", 1.01, 1.02), ("sketch-row", 4.9, 100), ("sketch-row", 5.1, 100), ("sketch-row", 200000.0, 1e6),
    ("sketch-row-replace", 1.5, 5), ("sketch-row-replace", 1.00001, 1e9), ("sketch-row-replace", 99.9, 100), ("sketch-row-replace", 26, 327.2),
    ("fastmix-row", 1.5, 5), ("fastmix-row", 1.0000001, 1e8), ("fastmix-row", 16.5, 20), ("fastmix-row", 10, 20, 2.0),
    ("fastmix-row", 1.01, 50, 1.0), ("fastmix-row", 6, 1e7, 3.5), ("fastmix-row", 3, 8, 1.2), ("fastmix-row", 1.001, 1.22),
    ("sketch-row", 99.9999999, 100), ("sketch-row", 1693993599.9, 1693993600.0), ("sketch-row-replace", 999999.999, 1e6),
    ("fastmix-row", 82.84271, 100), ("fastmix-row", 1.000000001, 1.20710679), ("fastmix-row", 1.077631671, 1.3008165, 1e8),
]
TIGHT = [  # terms, delta, epsilon
    ([("gaussian", 1, 0.5)], "1e-6", 2), ([("gaussian", 1, 0.001)], "1e-9", 0.01), ([("gaussian", 3, 0.1), ("sketch-row", 216, 300)], "1e-6", 1),
    ([("fastmix-row", 100, 20)], "1e-6", 3), ([("sketch-row", 20, 5)], "1e-6", 6), ([("laplace", 5, 20), ("gaussian", 1, 0.2)], "1e-7", 1),
    ([("fastmix-row", 50, 80, 2.0), ("laplace", 2, 10), ("gaussian", 1, 0.5)], "1e-8", 3), ([("sketch-row-replace", 60, 20), ("gaussian", 1, 0.5)], "1e-6", 3),
    ([("sketch-row", 1000, 1e6)], "1e-10", 0.001), ([("pure", 10, 0.05), ("gaussian", 1, 0.1)], "1e-5", 1),
    ([("sketch-row", 100, 1.5)], "1e-6", 80), ([("gaussian", 1, 3)], "1e-300", 100),
]


def text(terms):
    field = {"gaussian": "Mu", "pure": "Epsilon", "laplace": "Scale"}
    return ", ".join(
        '{Kind: "%s", Count: %d, %s: %r%s}' % (k, n, field.get(k, "Gamma"), p, ", C2: %r" % c2[0] if c2 else "") for k, n, p, *c2 in terms
    )


def tables():
    print("package dp\n\n// Code generated by testdata/curves.py; DO NOT EDIT.\n")
    joints()
    replaces()
    epsilons()
    renyis()
    tights()


def joints():
    print("var jointTable = []struct {\n\teps, mu        float64\n\trows           int\n\tgamma          float64\n\tremoved, added string\n}{")
    for e in JOINT:
        print("\t{%r, %r, %d, %r, %s, %s}," % (*e, show(joint(*e, True)), show(joint(*e, False))), flush=True)
    print("}\n")


def replaces():
    print("var replaceTable = []struct {\n\teps, mu float64\n\trows    int\n\tgamma   float64\n\tdelta   string\n}{")
    for *e, two in REPLACE:
        d = line(*e)
        if two:
            other = replace(*e)
            assert abs(other / d - 1) < mpf(10) ** -8, (e, nstr(other, 25), nstr(d, 25))
        print("\t{%r, %r, %d, %r, %s}, // %s" % (*e, show(d), "both" if two else "line"), flush=True)
    print("}\n")


def epsilons():
    print("var epsilonTable = []struct {\n\tdelta, mu float64\n\trows      int\n\tgamma     float64\n\teps       string\n}{")
    for d, mu, k, g in EPSILON:
        f = lambda e: log(max(joint(e, mu, k, g, True), joint(e, mu, k, g, False)) / mpf(float(d)))
        lo, hi = mpf(0), mpf(1)
        while f(hi) > 0:
            hi *= 2
        e = findroot(f, (lo, hi), solver="anderson", tol=mpf(10) ** -30, verify=False)
        print("\t{%s, %r, %d, %r, %s}," % (d, mu, k, g, show(e)), flush=True)
    print("}\n")


def renyis():
    print("var renyiTable = []struct {\n\tterm  Term\n\talpha float64\n\tr     string\n}{")
    for kind, a, p, *c2 in RENYI:
        print("\t{Term%s, %r, %s}," % (text([(kind, 1, p, *c2)]), a, show(renyi(kind, a, p, *c2))))
    print("}\n")


def tights():
    print("var tightTable = []struct {\n\tcurve             Curve\n\tdelta, eps        float64\n\tepsilon, logDelta string\n}{")
    for terms, d, e in TIGHT:
        print("\t{Curve{%s}, %s, %r, %s, %s}," % (text(terms), d, e, show(tight(terms, delta=float(d))), show(tight(terms, eps=e))), flush=True)
    print("}")


if __name__ == "__main__":
    tables()
