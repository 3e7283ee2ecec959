// Whether captured tensors are read inside of their bounds: interval arithmetic on the indices of every read, with the numbers of a call.
// The same as passes/intervals/{interval,box}.py on constants; numbers beyond 64 bits are unknown.
namespace attn {

struct Range {  // inclusive; an end that is not there is not known
  bool has_low = false, has_high = false;
  int64_t low = 0, high = 0;
  bool known() const { return has_low && has_high; }
};
struct Truth {
  bool can_be_true, can_be_false;
};

inline Range range(int64_t low, int64_t high) {
  Range made;
  made.has_low = made.has_high = true, made.low = low, made.high = high;
  return made;
}
inline Range point(int64_t x) { return range(x, x); }

// The hull of numbers; unknown where one of them does not fit into 64 bits.
struct Hull {
  Range found;
  bool lost = false;
  void take(__int128 x) {
    if (x > INT64_MAX || x < INT64_MIN) { lost = true; return; }
    int64_t n = int64_t(x);
    found = found.known() ? range(n < found.low ? n : found.low, n > found.high ? n : found.high) : point(n);
  }
  Range result() const { return lost ? Range() : found; }
};

inline int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
inline int64_t modulo(int64_t a, int64_t b) { return a - floor_div(a, b) * b; }

inline Range scaled_sum(int64_t constant, const Range *parts, const int64_t *factors, int count) {
  __int128 low = constant, high = constant;
  Range made = point(0);
  for (int i = 0; i < count; ++i) {
    const Range &part = parts[i];
    bool up = factors[i] > 0;
    made.has_low = made.has_low && (up ? part.has_low : part.has_high);
    made.has_high = made.has_high && (up ? part.has_high : part.has_low);
    low += __int128(factors[i]) * (up ? part.low : part.high);
    high += __int128(factors[i]) * (up ? part.high : part.low);
  }
  made.has_low = made.has_low && low >= INT64_MIN && low <= INT64_MAX;
  made.has_high = made.has_high && high >= INT64_MIN && high <= INT64_MAX;
  made.low = made.has_low ? int64_t(low) : 0, made.high = made.has_high ? int64_t(high) : 0;
  return made;
}

inline Range product(const Range &a, const Range &b) {
  if (!a.known() || !b.known()) return Range();
  Hull hull;
  for (int64_t x : {a.low, a.high})
    for (int64_t y : {b.low, b.high}) hull.take(__int128(x) * y);
  return hull.result();
}

inline Range quotient(const Range &a, const Range &b) {
  if (!a.known() || !b.known() || a.low == INT64_MIN) return Range();
  Hull hull;
  if (b.low == b.high && b.low != 0) {
    hull.take(floor_div(a.low, b.low)), hull.take(floor_div(a.high, b.low));
    return hull.result();
  }
  for (int64_t x : {a.low, a.high})
    for (int64_t y : {b.low, b.high}) hull.take(floor_div(x, y > 1 ? y : 1));
  if (b.low >= 1) return hull.result();
  int64_t low = a.low < 0 ? -a.low : a.low, high = a.high < 0 ? -a.high : a.high, most = low > high ? low : high;
  return range(-most, most);
}

inline Range remainder(const Range &a, const Range &b) {
  if (!b.known()) return Range();
  int64_t top = b.high - 1;
  if (b.low < 1) return range(b.low + 1 < 0 ? b.low + 1 : 0, top > 0 ? top : 0);
  if (!a.known()) return range(0, top);
  if (b.low != b.high) return range(0, a.low >= 0 && a.high < top ? a.high : top);
  bool same = floor_div(a.low, b.low) == floor_div(a.high, b.low);
  return same ? range(modulo(a.low, b.low), modulo(a.high, b.low)) : range(0, top);
}

inline Range negated(const Range &a) {
  Range made;
  made.has_low = a.has_high && a.high != INT64_MIN, made.has_high = a.has_low && a.low != INT64_MIN;
  made.low = made.has_low ? -a.high : 0, made.high = made.has_high ? -a.low : 0;
  return made;
}

// The least of operands is bounded above by any of them, and below only where all are.
inline Range least(const Range *parts, int count) {
  Range made;
  made.has_low = true;
  for (int i = 0; i < count; ++i) {
    const Range &part = parts[i];
    if (part.has_high && (!made.has_high || part.high < made.high)) made.has_high = true, made.high = part.high;
    made.low = i == 0 || part.low < made.low ? part.low : made.low;
    made.has_low = made.has_low && part.has_low;
  }
  return made;
}

inline Range most(const Range *parts, int count) {
  std::vector<Range> turned;
  for (int i = 0; i < count; ++i) turned.push_back(negated(parts[i]));
  return negated(least(turned.data(), count));
}

inline Range absolute(const Range &a) {
  Range made, turned = negated(a);
  if (!a.has_low && !a.has_high) return made;
  made.has_low = true;
  for (const Range &side : {a, turned})
    if (side.has_low && side.low > made.low) made.low = side.low;
  if (a.known() && turned.known()) made.has_high = true, made.high = a.high > turned.high ? a.high : turned.high;
  return made;
}

inline Truth at_least_zero(const Range &a) { return {!a.has_high || a.high >= 0, !a.has_low || a.low < 0}; }
inline Truth is_zero(const Range &a) {
  bool can = (!a.has_low || a.low <= 0) && (!a.has_high || a.high >= 0);
  return {can, !(a.known() && a.low == 0 && a.high == 0)};
}
inline Truth both(Truth a, Truth b) { return {a.can_be_true && b.can_be_true, a.can_be_false || b.can_be_false}; }
inline Truth either(Truth a, Truth b) { return {a.can_be_true || b.can_be_true, a.can_be_false && b.can_be_false}; }
inline Truth opposite(Truth a) { return {a.can_be_false, a.can_be_true}; }

// x + rest, or rest - x, where x >= 0 is known to hold.
inline Range refined(const Range &x, const Range &rest, bool plus) {
  Range inner = x;
  if (!x.has_low || x.low < 0) inner.low = 0;
  inner.has_low = true;
  const Range parts[] = {plus ? inner : negated(inner), rest};
  const int64_t factors[] = {1, 1};
  return scaled_sum(0, parts, factors, 2);
}

inline Range chosen(Truth condition, const Range &a, const Range &b) {
  if (!condition.can_be_true) return b;
  if (!condition.can_be_false) return a;
  Range made;
  made.has_low = a.has_low && b.has_low, made.has_high = a.has_high && b.has_high;
  made.low = a.low < b.low ? a.low : b.low, made.high = a.high > b.high ? a.high : b.high;
  return made;
}

// The elements of an integer tensor at a box of indices, kept inside of it.
inline Range elements(const Tensor &tensor, const Range *indices) {
  if (tensor.element == I1) return range(0, 1);
  Tensor part = tensor;
  int64_t width = facts(tensor.element).bytes;
  for (int d = 0; d < tensor.rank; ++d) {
    int64_t size = tensor.shape[d], last = size > 0 ? size - 1 : 0, begin = 0, end = size;
    if (indices[d].has_low) begin = indices[d].low < 0 ? 0 : indices[d].low > last ? last : indices[d].low;
    if (indices[d].has_high && indices[d].high < last) end = indices[d].high + 1 > begin + 1 ? indices[d].high + 1 : begin + 1;
    if (end > size) return Range();
    part.shape[d] = end - begin;
    part.data += begin * tensor.strides[d] * width;
  }
  if (part.count() == 0) return Range();
  std::vector<char> fetched;
  part = on_host(part, fetched);
  if (!part.data) return Range();
  Hull hull;
  walk(part, part, 0, part.count(), [&](int64_t i, int64_t) { hull.take(load_integer(part.data + i * width, part.element)); });
  return hull.result();
}

inline int32_t check_read(const Range &index, const Tensor &tensor, int dim, bool wraps, const char *name, const char *text) {
  long long size = tensor.shape[dim];
  if (!index.known())
    return fail(ATTN_MLIR_ERROR_VALUE, "%s is read at %s in dimension %d, whose range is not known", name, text, dim);
  if (index.low >= (wraps ? -size : 0) && index.high < size) return 0;
  return fail(ATTN_MLIR_ERROR_VALUE, "%s has size %lld in dimension %d, but is read at %s, which runs over %lld..%lld", name, size, dim,
              text, (long long)index.low, (long long)index.high);
}

}  // namespace attn
