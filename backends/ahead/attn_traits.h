#ifndef ATTN_FMHA_TRAITS
#define ATTN_FMHA_TRAITS 1 /* the version of this interface */
/* What calls return besides the codes of ATTN_MLIR_ERROR_...: */
enum {
  ATTN_FMHA_ERROR_TRAIT = 64,   /* a trait is not a word that there is, such as a dtype "fp15" */
  ATTN_FMHA_ERROR_INSTANCE = 65 /* the library has no instance with these traits: the message says which ones the nearest has */
};
/* Which kernel is wanted. A trait that is 0 or NULL is the usual one, told in brackets. */
typedef struct {
  const char *dtype;  /* "fp16", "bf16", "fp32", "fp64" */
  int32_t head_dim;   /* of q and k */
  int32_t value_dim;  /* of v [head_dim] */
  const char *row;    /* "softmax", "sigmoid", ... ["softmax"] */
  const char *mask;   /* as CK's examples have it, with the numbers of the call: "0", "t", "b", "t:128,0", "b:64,64", "xt:32", "g:8,8" ["0"] */
  const char *bias;   /* "n", "e", "e:1", "e:2" (1*1*s*s, 1*h*s*s, b*h*s*s), "a", "a:1" (ALiBi, slopes 1*h, b*h) ["n"] */
  const char *layout; /* the order of the dimensions of q, k, v and o: "bhsd", "bshd" ["bhsd"] */
  const char *variant; /* the name that an instance with functions of its own has [""] */
  int32_t soft_cap;   /* whether scores are capped by args.soft_cap */
  int32_t dropout;    /* whether weights are dropped with args.dropout_p */
  int32_t lse;        /* whether the logarithm of the sum of each row is a result */
  int32_t bias_gradient; /* of a backward pass: whether d_bias (or d_alibi_slopes) is made */
  int32_t deterministic; /* of a backward pass on a GPU: the same bits in every run */
} attn_fmha_traits;
/* What functions of an instance capture, by its name. */
typedef struct {
  const char *name;
  const DLTensor *tensor;
  double real;
  int64_t integer;
  DLTensor *gradient; /* where the instance makes one */
} attn_fmha_value;
/* Tensors and numbers of a call; what the traits do not ask for is not read. */
typedef struct {
  const DLTensor *q, *k, *v;
  const DLTensor *bias;         /* bias "e": [1 or B, 1 or Hq, Sq, Skv], the dtype of q */
  const DLTensor *alibi_slopes; /* bias "a": [1 or B, Hq], float32 */
  double scale;                 /* of scores; 0: 1 / sqrt(head_dim) */
  double soft_cap;
  double dropout_p;
  int64_t dropout_seed, dropout_offset;
  const attn_fmha_value *values; /* what functions of the instance capture */
  int32_t value_count;
  DLTensor *o, *lse;
  void *saved; /* what training_fwd keeps for bwd, sizes.saved bytes */
  size_t saved_size;
  const DLTensor *d_o, *d_lse; /* d_lse NULL: zeros */
  DLTensor *d_q, *d_k, *d_v, *d_bias, *d_alibi_slopes;
  void *workspace; /* NULL: the call takes it from the system, or from the device */
  size_t workspace_size;
  int32_t threads; /* of a CPU; 0: all */
} attn_fmha_args;
#endif
