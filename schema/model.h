// What a pipeline stage holds: its tensors, and every byte of memory that its values need.
//
// A rank takes one arena and the compiler plans the offsets in it, so the sizes of all values,
// and the places inside them, have to be known to both programs. They are here and nowhere else.
//
// GPT-2 is cut between blocks. Stage 0 also holds the embeddings, the last stage also the final
// LayerNorm and the head:
//
//     stage 0                       stage 1 ..            last stage
//     tokens -> wte+wpe -> h.0 .. | h.k .. h.k' | .. -> | h.n .. -> ln_f -> head -> loss
//                        act(0,m) ^    act(1,m) ^
//
// Words: N = B*T tokens of a micro-batch, C = n_embd, I = n_inner, H = n_head, V = vocab_size.
// All numbers are float except tokens and targets (int32), the loss and the norm blocks (double).
// All offsets and sizes are bytes. Inner offsets are multiples of kAlign; a size ends with the last
// number, without padding.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "schema/status.h"

namespace pp {

inline constexpr int64_t kAlign = 64;
// The gradient norm is summed in double per block of so many numbers of one tensor.
inline constexpr int64_t kNormBlock = 65536;

// A Hugging Face configuration of GPT-2, under the names it has there.
struct ModelConfig {
  int vocab_size = 0;
  int n_positions = 0;
  int n_embd = 0;
  int n_layer = 0;
  int n_head = 0;
  int n_inner = 0;  // 4 * n_embd where config.json says null
  float layer_norm_epsilon = 1e-5f;
  float embd_pdrop = 0.1f;
  float attn_pdrop = 0.1f;
  float resid_pdrop = 0.1f;
  float initializer_range = 0.02f;
  bool tie_word_embeddings = true;  // false: the head is a tensor of its own, lm_head.weight

  bool operator==(const ModelConfig&) const = default;
};

// Reads a config.json. `file` is the name that errors give.
Result<ModelConfig> ParseModelConfig(std::string_view text, const std::string& file);
Result<ModelConfig> LoadModelConfig(const std::string& path);
// One line that ParseModelConfig reads back.
std::string ToJson(const ModelConfig& config);
// Whether the numbers make a model; for configurations from elsewhere (a plan file).
Status CheckModelConfig(const ModelConfig& config, const std::string& file);

// A model, what one micro-batch of it is, and where it is cut.
struct Job {
  ModelConfig model;
  int micro_batch_size = 1;
  int sequence_length = 0;
  std::vector<int> layers_per_stage;

  int stages() const { return static_cast<int>(layers_per_stage.size()); }
  // N.
  int64_t tokens() const { return int64_t{micro_batch_size} * sequence_length; }

  bool operator==(const Job&) const = default;
};

// The same number of layers for each stage. The error has no file or option in front: the caller
// knows which option it was (Status::In).
Result<std::vector<int>> SplitLayers(int layers, int stages);
// Whether a split that somebody wrote fits. A stage may have 0 layers: only embeddings, only a
// head.
Status CheckSplit(const std::vector<int>& split, int layers, int stages);
// Model, micro-batch and split: all that may be wrong with a Job from outside.
Status CheckJob(const Job& job);

// One parameter of a stage.
struct Tensor {
  std::string name;         // as Hugging Face's, without "transformer."
  int64_t rows = 1;         // 1 for a vector, and for some matrices
  int64_t cols = 0;         // a matrix is [in, out] row-major (Conv1D), an embedding [token, C]
  int64_t weight = 0;       // offset in the stage's weights
  int64_t wgrad = 0;        // offset in the stage's wgrad
  int64_t first_block = 0;  // its first norm block, among those of the stage
  int64_t blocks = 0;       // ceil(elements / kNormBlock); 0 for the last stage's copy of wte
  int id = 0;               // number along the model, the same in every split
  bool matrix = false;      // even where it has one row; only matrices have weight decay
  float init_mean = 0;      // a new model's weights are N(mean, std)
  float init_std = 0;

  int64_t elements() const { return rows * cols; }
  int64_t bytes() const { return elements() * 4; }
};

// stash: what a forward saves for its backward. It contains what the forward read (the received
// act(s-1,m) or the tokens, and the targets), which stays where it is, and beyond it, per layer:
//
//   x -> ln_1 -> c_attn -> [qkv] -> heads -> [context] -> c_proj -> dropout -> + x -> [middle]
//     -> ln_2 -> c_fc -> [hidden] -> GELU -> c_proj -> dropout -> + middle -> x of the next layer
//
// What the LayerNorms and GELU give is not kept: the backward makes it again in passing.
struct LayerStash {
  int64_t x = -1;       // [N, C]; -1 in the first layer of a stage > 0: there it is act(s-1,m)
  int64_t mean1 = 0;    // [N]
  int64_t rstd1 = 0;    // [N]
  int64_t qkv = 0;      // [N, 3C], of each row first all queries, then keys, then values
  int64_t lse = 0;      // [B, H, T], log of the sum of the exponentials of a row of scores
  int64_t context = 0;  // [N, C]
  int64_t middle = 0;   // [N, C]
  int64_t mean2 = 0;    // [N]
  int64_t rstd2 = 0;    // [N]
  int64_t hidden = 0;   // [N, I]
};

// And once, in the last stage. The backward turns the logits into their gradient, in place.
struct HeadStash {
  int64_t x = -1;          // [N, C] output of the last layer; -1 in a stage without layers
  int64_t mean = 0;        // [N]
  int64_t rstd = 0;        // [N]
  int64_t statistics = 0;  // [N, 2]
  int64_t logits = 0;      // [N, logits_stride]
};

// work: what BW_input saves for BW_weight beyond the stash, which it contains. Per layer:
struct LayerWork {
  int64_t d_mlp = 0;     // [N, C] with respect to the output of mlp.c_proj
  int64_t d_hidden = 0;  // [N, I]
  int64_t d_proj = 0;    // [N, C] with respect to the output of attn.c_proj
  int64_t d_qkv = 0;     // [N, 3C]
  int64_t d_norm = 0;    // [4, C] this micro-batch's part of ln_1.weight, .bias, ln_2.weight, .bias
};

// scratch: what an instruction needs only while it runs; the instructions of a rank share it.
//
//   FW, RE   | kernels | normed | wide |
//   BW       | kernels | normed | wide | flow | work of one layer | d_final |
//   BW_*     | kernels | normed | wide | flow |
//   CFW      | kernels | normed | wide | flow | stash of one layer | flow | head's stash |
struct Scratch {
  int64_t kernels = 0;  // KernelBytes
  int64_t normed = 0;   // [N, C]
  int64_t wide = 0;     // [N, I]
  int64_t flow = 0;     // [N, C] the residual stream's gradient in stage 0; the stream in CFW
  LayerWork work;       // BW
  int64_t d_final = 0;  // BW: [2, C] of ln_f
  LayerStash stash;     // CFW
  int64_t flow2 = 0;    // CFW: [N, C]
  HeadStash head;       // CFW
};

// Everything about one stage. A size of 0: this stage has no such value.
struct StageLayout {
  int stage = 0;
  bool first = false;  // has the embeddings
  bool last = false;   // has ln_f and the head
  int first_layer = 0;
  int layers = 0;

  // In model order; the head (lm_head, or the last stage's copy of wte) at the end. In a single
  // stage with tied embeddings wte is there once, at the beginning.
  std::vector<Tensor> tensors;
  int64_t parameters = 0;  // of the model, that live here: the copy of wte does not count
  int64_t weights_bytes = 0;
  int64_t optimizer_bytes = 0;  // m, laid out as the weights, then v
  int64_t optimizer_v = 0;      // where v begins

  // Tied embeddings have two accumulators, of the look-up (stage 0) and of the head (last stage),
  // both of them also in a single stage: they are added once, at the end of the step, so the sums
  // are taken in the same order in every split. -1 and 0 where there is none, or untied.
  int64_t wgrad_bytes = 0;
  int64_t tied_lookup = -1;  // offset in wgrad
  int64_t tied_head = -1;    // offset in wgrad
  int64_t tied_bytes = 0;    // V * C * 4, in the stages that take part

  // One double for each block of kNormBlock numbers of each tensor.
  int64_t norm_blocks = 0;
  int64_t first_norm_block = 0;  // among those of the whole model

  int64_t tokens_bytes = 0;   // [B, T] int32, first stage
  int64_t targets_bytes = 0;  // [B, T] int32, last stage
  int64_t loss_bytes = 0;     // one double a micro-batch, last stage: the sum over its tokens
  int64_t act_bytes = 0;      // act(s,m) [N, C]; not in the last stage
  int64_t grad_bytes = 0;     // grad(s,m), the same

  std::vector<LayerStash> stash;
  HeadStash head_stash;
  int64_t logits_stride = 0;  // V, up to a multiple of 16
  int64_t stash_bytes = 0;    // beyond what the forward read

  std::vector<LayerWork> work;
  int64_t work_embed = 0;  // [N, C] gradient with respect to wte + wpe, first stage
  int64_t work_final = 0;  // [2, C] of ln_f, last stage
  int64_t work_bytes = 0;  // beyond the stash

  Scratch scratch;
  int64_t scratch_bytes = 0;       // enough for all but CFW
  int64_t drop_scratch_bytes = 0;  // enough for CFW, too
};

// REQUIRES: CheckJob(job).ok() and 0 <= stage < job.stages().
StageLayout LayoutStage(const Job& job, int stage);

// Norm blocks of the whole model.
int64_t NormBlocks(const Job& job);

// Working space of the CPU's kernels, for the one that needs the most: of one thread, which is in
// scratch; each further thread of a rank takes as much beside the arena.
int64_t KernelBytes(const Job& job);

}  // namespace pp
