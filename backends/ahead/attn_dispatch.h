// The instances of a generated library, and which of them a call means: traits as words, masks as strings, arguments by name.
namespace attn {

// Where an argument of an instance comes from.
enum Role : uint8_t { NAMED, SCALE, CAP, SEED, OFFSET, PROBABILITY, LEFT, RIGHT, SINK, BIAS, SLOPES };

struct Instance {
  const char *name;
  bool backward;
  const char *dtype, *row, *mask, *bias, *layout, *variant;
  int32_t head_dim, value_dim;
  bool soft_cap, dropout, lse, bias_gradient, deterministic;
  const Library *library;
  const Role *roles;  // of the library's arguments after q, k and v
};

struct Instances {
  const char *library;
  int count;
  const Instance *const *all;
};

// The limits that a mask string means: see `mask_strings.window_of`. `kind` is that of the instances that take them.
struct Mask {
  char kind[8] = "0";
  int64_t left = 0, right = 0, sink = 0;
};

inline int32_t unknown_mask(const char *text) {
  return fail(ATTN_FMHA_ERROR_TRAIT, "unknown mask '%s': it is 0, t, b, t:l,r, b:l,r, t:l,r,sink, b:l,r,sink, xt:w, xb:w or g:y,x", text);
}

inline int32_t read_mask(const char *text, Mask &to) {
  to = Mask();
  if (!std::strcmp(text, "0")) return 0;
  const char *colon = std::strchr(text, ':');
  std::string word(text, colon ? size_t(colon - text) : std::strlen(text));
  bool has_left = false, has_right = true, bottom = false;
  int64_t numbers[3] = {};
  int count = 0;
  for (const char *p = colon; p && *p; ++count) {
    const char *digits = p + 1 + (p[1] == '-' || p[1] == '+'), *end = digits;
    while (*end >= '0' && *end <= '9') ++end;
    if (count == 3 || end == digits || (*end && *end != ',')) return unknown_mask(text);
    int64_t number = std::strtoll(p + 1, nullptr, 10);
    numbers[count] = number < -INT64_MAX ? -INT64_MAX : number;
    p = end;
  }
  auto halves = [&](int64_t width) {
    has_left = width > 0;
    if (has_left) to.left = width / 2, to.right = width - 1 - width / 2;
  };
  if (!colon && (word == "t" || word == "1" || word == "b" || word == "2")) {
    bottom = word == "b" || word == "2";
  } else if ((word == "t" || word == "b") && (count == 2 || count == 3)) {
    bottom = word == "b", has_left = numbers[0] >= 0, has_right = numbers[1] >= 0;
    to.left = has_left ? numbers[0] : 0, to.right = has_right ? numbers[1] : 0, to.sink = has_left ? numbers[2] : 0;
    if (numbers[2] < 0) return unknown_mask(text);
  } else if ((word == "xt" || word == "xb") && count == 1) {
    bottom = word == "xb";
    halves(numbers[0]);
  } else if (word == "g" && count == 2) {
    if (__int128(numbers[0]) + numbers[1] < 2) return unknown_mask(text);
    has_left = true, to.left = numbers[0] - 1, to.right = numbers[1] - 1;
  } else {
    return unknown_mask(text);
  }
  const char *side = bottom ? "b" : "t";
  if (!has_left && has_right && to.right == 0) std::snprintf(to.kind, sizeof to.kind, "%s", side);
  else std::snprintf(to.kind, sizeof to.kind, "%s%s%s%s", side, has_left ? "l" : "", has_right ? "r" : "", to.sink ? "s" : "");
  // No limits at all: the same as no mask, but for how far ALiBi takes keys to be.
  if (!has_left && !has_right) std::snprintf(to.kind, sizeof to.kind, "%s", bottom ? "0" : "tn");
  return 0;
}

// What a call asks for, with the words that stand for a NULL.
struct Wanted {
  const char *dtype, *row, *mask_text, *bias, *layout, *variant;
  int32_t head_dim, value_dim;
  Mask mask;
};

inline bool is_one_of(const char *word, std::initializer_list<const char *> words) {
  for (const char *each : words)
    if (!std::strcmp(word, each)) return true;
  return false;
}

inline int32_t read_traits(const attn_fmha_traits *traits, Wanted &to) {
  if (!traits) return fail(ATTN_MLIR_ERROR_NULL, "traits is NULL");
  if (!traits->dtype) return fail(ATTN_MLIR_ERROR_NULL, "traits.dtype is NULL: it is \"fp16\", \"bf16\", \"fp32\" or \"fp64\"");
  auto word = [](const char *given, const char *usual) { return given ? given : usual; };
  to.dtype = traits->dtype, to.row = word(traits->row, "softmax"), to.mask_text = word(traits->mask, "0");
  to.bias = word(traits->bias, "n"), to.layout = word(traits->layout, "bhsd"), to.variant = word(traits->variant, "");
  to.head_dim = traits->head_dim, to.value_dim = traits->value_dim ? traits->value_dim : traits->head_dim;
  if (!is_one_of(to.dtype, {"fp16", "bf16", "fp32", "fp64"}))
    return fail(ATTN_FMHA_ERROR_TRAIT, "unknown dtype '%s': it is fp16, bf16, fp32 or fp64", to.dtype);
  if (!is_one_of(to.layout, {"bhsd", "bshd", "sbhd"}))
    return fail(ATTN_FMHA_ERROR_TRAIT, "unknown layout '%s': it is bhsd, bshd or sbhd", to.layout);
  if (is_one_of(to.bias, {"e", "a"})) to.bias = *to.bias == 'e' ? "e:0" : "a:0";
  if (!is_one_of(to.bias, {"n", "e:0", "e:1", "e:2", "a:0", "a:1"}))
    return fail(ATTN_FMHA_ERROR_TRAIT, "unknown bias '%s': it is n, e, e:1, e:2, a or a:1", to.bias);
  if (to.head_dim <= 0 || to.value_dim <= 0)
    return fail(ATTN_FMHA_ERROR_TRAIT, "head_dim %d and value_dim %d must be positive", int(to.head_dim), int(to.value_dim));
  ATTN_CHECK(read_mask(to.mask_text, to.mask));
  if (!std::strcmp(to.mask.kind, "tn") && *to.bias != 'a') std::strcpy(to.mask.kind, "0");
  return 0;
}

// Appends what differs between the traits of an instance and those that are wanted; returns how many do.
inline int differences(const Instance &x, const attn_fmha_traits &traits, const Wanted &wanted, std::string *text) {
  int count = 0;
  auto told = [&](const char *name, const std::string &has, const std::string &asked) {
    if (has == asked) return;
    ++count;
    if (text) *text += (text->empty() ? "" : ", ") + std::string(name) + " '" + has + "' (not '" + asked + "')";
  };
  auto flag = [](bool value) { return std::string(value ? "1" : "0"); };
  told("dtype", x.dtype, wanted.dtype);
  told("head_dim", std::to_string(x.head_dim), std::to_string(wanted.head_dim));
  told("value_dim", std::to_string(x.value_dim), std::to_string(wanted.value_dim));
  told("row", x.row, wanted.row);
  told("mask", x.mask, wanted.mask.kind);
  told("bias", x.bias, wanted.bias);
  told("layout", x.layout, wanted.layout);
  told("variant", x.variant, wanted.variant);
  told("soft_cap", flag(x.soft_cap), flag(traits.soft_cap));
  told("dropout", flag(x.dropout), flag(traits.dropout));
  told("lse", flag(x.lse), flag(traits.lse));
  if (x.backward) {
    told("bias_gradient", flag(x.bias_gradient), flag(traits.bias_gradient));
    told("deterministic", flag(x.deterministic), flag(traits.deterministic));
  }
  return count;
}

// The instance that a call means.
inline int32_t find(const Instances &instances, const attn_fmha_traits *traits, bool backward, const Instance *&found, Mask &mask) {
  Wanted wanted;
  found = nullptr;
  ATTN_CHECK(read_traits(traits, wanted));
  mask = wanted.mask;
  const Instance *nearest = nullptr;
  int least = 0;
  for (int i = 0; i < instances.count; ++i) {
    const Instance &each = *instances.all[i];
    if (each.backward != backward) continue;
    int count = differences(each, *traits, wanted, nullptr);
    if (!count) return found = &each, 0;
    if (!nearest || count < least) nearest = &each, least = count;
  }
  const char *what = backward ? "backward" : "forward";
  if (!nearest) return fail(ATTN_FMHA_ERROR_INSTANCE, "%s has no instances of a %s pass at all", instances.library, what);
  std::string text;
  differences(*nearest, *traits, wanted, &text);
  return fail(ATTN_FMHA_ERROR_INSTANCE, "%s has no instance of a %s pass with these traits; the nearest, %s, has %s", instances.library, what,
              nearest->name, text.c_str());
}

// The value of a captured argument that the user gives by its name.
inline const attn_fmha_value *named(const attn_fmha_args &args, const char *name) {
  for (int32_t i = 0; i < args.value_count; ++i)
    if (args.values[i].name && !std::strcmp(args.values[i].name, name)) return &args.values[i];
  return nullptr;
}

// q, k, v and what is captured, in the order of the instance's arguments.
inline int32_t arguments_of(const Instance &instance, const Mask &mask, const attn_fmha_args *args, std::vector<Given> &given) {
  if (!args) return fail(ATTN_MLIR_ERROR_NULL, "args is NULL");
  if (args->value_count < 0 || (args->value_count > 0 && !args->values))
    return fail(ATTN_MLIR_ERROR_NULL, "args.values is NULL, and args.value_count %d", int(args->value_count));
  const Library &lib = *instance.library;
  given = {Given(args->q), Given(args->k), Given(args->v)};
  for (int i = 3; i < lib.argument_count; ++i) {
    const Argument &argument = lib.arguments[i];
    switch (instance.roles[i - 3]) {
      case SCALE: given.emplace_back(args->scale != 0 ? args->scale : 1 / std::sqrt(double(instance.head_dim))); break;
      case CAP: given.emplace_back(args->soft_cap); break;
      case SEED: given.emplace_back(args->dropout_seed); break;
      case OFFSET: given.emplace_back(args->dropout_offset); break;
      case PROBABILITY: given.emplace_back(args->dropout_p); break;
      case LEFT: given.emplace_back(mask.left); break;
      case RIGHT: given.emplace_back(mask.right); break;
      case SINK: given.emplace_back(mask.sink); break;
      case BIAS: given.emplace_back(args->bias); break;
      case SLOPES: given.emplace_back(args->alibi_slopes); break;
      default: {
        const attn_fmha_value *value = named(*args, argument.name);
        if (!value) return fail(ATTN_MLIR_ERROR_NULL, "%s needs '%s', which is not among args.values", instance.name, argument.name);
        if (argument.kind == TENSOR) given.emplace_back(value->tensor);
        else if (argument.kind == INTEGER) given.emplace_back(value->integer);
        else given.emplace_back(value->real);
      }
    }
  }
  return 0;
}

inline std::vector<const DLTensor *> rows_of(const Instance &instance, const DLTensor *o, const DLTensor *lse) {
  std::vector<const DLTensor *> made = {o};
  if (instance.library->row_count) made.push_back(lse);
  return made;
}

inline Workspace workspace_of(const attn_fmha_args &args, void *stream) {
  return {args.workspace, args.workspace_size, stream, args.threads};
}

// The instance that a call finds, and what it is called with.
struct Prepared {
  const Instance *found = nullptr;
  std::vector<Given> given;

  const Library &library() const { return *found->library; }
};

inline int32_t prepare(const Instances &instances, const attn_fmha_traits *traits, const attn_fmha_args *args, bool backward, Prepared &call) {
  Mask mask;
  ATTN_CHECK(find(instances, traits, backward, call.found, mask));
  return arguments_of(*call.found, mask, args, call.given);
}

inline int32_t call_forward(const Instances &instances, const attn_fmha_traits *traits, const attn_fmha_args *args, void *stream) {
  Prepared call;
  ATTN_CHECK(prepare(instances, traits, args, false, call));
  return forward(call.library(), call.given.data(), rows_of(*call.found, args->o, args->lse).data(), workspace_of(*args, stream));
}

inline int32_t call_training(const Instances &instances, const attn_fmha_traits *traits, const attn_fmha_args *args, void *stream) {
  Prepared call;
  ATTN_CHECK(prepare(instances, traits, args, true, call));
  const auto rows = rows_of(*call.found, args->o, args->lse);
  return training(call.library(), call.given.data(), rows.data(), args->saved, args->saved_size, workspace_of(*args, stream));
}

inline int32_t call_backward(const Instances &instances, const attn_fmha_traits *traits, const attn_fmha_args *args, void *stream) {
  Prepared call;
  ATTN_CHECK(prepare(instances, traits, args, true, call));
  const Library &lib = call.library();
  const Instance &found = *call.found;
  std::vector<const DLTensor *> made;
  for (int i = 0; i < lib.gradient_count; ++i) {
    int position = lib.gradients[i];
    const attn_fmha_value *value = nullptr;
    if (position >= 3 && found.roles[position - 3] == NAMED) value = named(*args, lib.arguments[position].name);
    if (position < 3) made.push_back(position == 0 ? args->d_q : position == 1 ? args->d_k : args->d_v);
    else if (value) made.push_back(value->gradient);
    else made.push_back(found.roles[position - 3] == BIAS ? args->d_bias : args->d_alibi_slopes);
  }
  const auto rows = rows_of(found, args->o, args->lse), gradients = rows_of(found, args->d_o, args->d_lse);
  return backward(lib, call.given.data(), rows.data(), args->saved, args->saved_size, gradients.data(), made.data(), workspace_of(*args, stream));
}

inline int32_t call_sizes(const Instances &instances, const attn_fmha_traits *traits, const attn_fmha_args *args, bool backward,
                          attn_mlir_sizes *sizes) {
  Prepared call;
  ATTN_CHECK(prepare(instances, traits, args, backward, call));
  return sizes_of(call.library(), call.given.data(), sizes);
}

inline const char *find_name(const Instances &instances, const attn_fmha_traits *traits, bool backward) {
  const Instance *found = nullptr;
  Mask mask;
  guarded([&] { return find(instances, traits, backward, found, mask); });
  return found ? found->name : nullptr;
}

}  // namespace attn
