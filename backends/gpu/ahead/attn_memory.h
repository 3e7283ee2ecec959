// Memory of a GPU for one call, and what the host reads of it. A machine defines before, each with the result that its driver gives: take_memory,
// give_memory, read_memory and wait_for_stream, in the order of the stream of the call, and capture_status, which is not 0 while a graph is captured.
namespace attn {

struct OwnMemory {
  void *data = nullptr;
  OwnMemory() = default;
  OwnMemory(const OwnMemory &) = delete;
  ~OwnMemory() {
    if (data) give_memory(data);
  }
  int32_t take(size_t bytes) {
    void *place = nullptr;
    if (int result = take_memory(&place, bytes)) {
      char what[96];
      std::snprintf(what, sizeof what, "taking %zu bytes of memory for a workspace", bytes);
      return driver_error(result, what);
    }
    data = place;
    return 0;
  }
};

inline char *a_zero() { return active().loaded->zero; }

inline bool is_capturing() {
  int status = 0;
  check(capture_status(&status), "asking whether the stream is captured");
  return status != 0;
}
// While a graph is captured, nothing can be read of the device: what elements say is not checked then.
inline bool trusts_elements() { return active().loaded && is_capturing(); }

// A tensor whose elements the host can read: a copy, for which it waits.
inline Tensor on_host(const Tensor &x, std::vector<char> &fetched) {
  Tensor near = x;
  near.data = nullptr;
  if (trusts_elements()) return near;
  int64_t width = facts(x.element).bytes, low = 0, high = 0;
  for (int d = 0; d < x.rank; ++d) (x.strides[d] < 0 ? low : high) += (x.shape[d] - 1) * x.strides[d];
  fetched.resize(size_t((high - low + 1) * width));
  check(read_memory(fetched.data(), x.data + low * width, fetched.size()), "reading the elements of a captured tensor");
  check(wait_for_stream(), "waiting for the elements of a captured tensor");
  near.data = fetched.data() - low * width;
  return near;
}

}  // namespace attn
