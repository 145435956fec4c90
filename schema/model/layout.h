// What a pipeline stage holds: its tensors, and every byte of memory that its values need.
//
// A rank takes one arena and the compiler plans the offsets in it, so both programs have to know
// the sizes of all values and the places inside them. They are defined here and nowhere else.
//
// A model is cut between layers. Stage 0 also holds the embeddings, the last stage also the final
// norm and the head:
//
//     stage 0                            stage 1 ..                  last stage
//     tokens -> embedding -> layer 0 .. | layer k .. layer k' | .. | layer n .. -> norm -> loss
//                              act(0,m) ^            act(1,m) ^
//
// Words: N = B*T tokens of a micro-batch, C = hidden_size, V = vocab_size. S = N, or with sequence
// parallelism this peer's share of them: the rows of the residual stream.
// Activations, and gradients with respect to them, have the job's dtype. All other elements are
// float except tokens and targets (int32), the loss and the norm blocks (double). All offsets and
// sizes are bytes. Inner offsets are multiples of kAlign; a size ends with the last element,
// without padding.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "schema/base/status.h"
#include "schema/model/job.h"
#include "schema/model/operators.h"

namespace pp {

inline constexpr int64_t kAlign = 64;
// The gradient norm is summed in double per block of this many elements of one tensor.
inline constexpr int64_t kNormBlock = 65536;
// On CPUs, collectives that take sums do so in pieces of at most this many bytes per member, which
// caches hold.
inline constexpr int64_t kExchangePiece = int64_t{1} << 20;

// One parameter of a stage; with tensor-parallel peers, one peer's part of it.
struct Tensor {
  std::vector<Piece> pieces;  // of Hugging Face's files, whole
  bool across = false;        // as in Parameter
  Cut cut = Cut::kNone;
  int64_t rows = 1;         // 1 for a vector, and for some matrices
  int64_t cols = 0;         // a matrix is row-major, as Matrix says; an embedding is [token, C]
  int64_t weight = 0;       // offset in the stage's weights
  int64_t wgrad = 0;        // offset in the stage's wgrad; -1: it is frozen, and has no gradient
  int64_t rounded = -1;     // offset in the stage's rounded weights; -1: it has none there
  int64_t first_block = 0;  // its first norm block, among those of the stage
  int64_t blocks = 0;       // ceil(elements / kNormBlock); 0 for a frozen one, and for the last
                            // stage's copy of a tied one
  int id = 0;               // index along the model, the same in every split
  bool matrix = false;      // even where it has one row; only matrices have weight decay
  float init_mean = 0;      // a new model's weights are N(mean, std)
  float init_std = 0;
  bool adapter = false;  // as in Parameter

  bool trainable() const { return wgrad >= 0; }
  const std::string& name() const { return pieces.front().name; }
  int64_t elements() const { return rows * cols; }
  int64_t bytes() const { return elements() * 4; }
};

// The last stage's copy of a tied tensor, which files contain as the first stage's.
inline bool IsTiedCopy(int stage, const Tensor& tensor) { return stage > 0 && tensor.id == 0; }

// The part of a Hugging Face tensor that is a part of one of ours: a block of rows and columns. A
// vector has one row.
struct Slice {
  std::string name;
  std::vector<int64_t> shape;  // of the file's tensor
  int64_t row = 0, col = 0;    // where the block begins there
  int64_t rows = 0, cols = 0;  // of the block
  int64_t at = 0;  // of its first element, in ours, whose rows have Tensor::cols elements
  int64_t element = 0, row_elements = 0;  // the same in the whole parameter, of all peers
};
// One of `count` tensor-parallel peers.
struct Peer {
  int index = 0, of = 1;
};
// What no slice covers is padding: zeros.
std::vector<Slice> SlicesOf(const Tensor& tensor, const Peer& peer);

// Where something lies: an offset in bytes into one of the areas that an instruction is given. What
// a CFW keeps of a stash (Job::recompute) is an area of its own: kKept. kScratch holds what only
// this instruction needs; the instructions of a rank share it.
enum class Area : uint8_t {
  kNone,
  kActBefore,
  kAct,
  kGradBefore,
  kGrad,
  kKept,
  kStash,
  kWork,
  kScratch,
};
struct Spot {
  Area area = Area::kNone;
  int64_t offset = 0;

  explicit operator bool() const { return area != Area::kNone; }
  bool operator==(const Spot&) const = default;
};

// Where a forward puts what a backward needs: FW and RE use the stash; CFW uses scratch, the same
// place for one layer after the other, except for what it keeps. The forward that saves the logits
// also overwrites them with the gradient with respect to them, where the backward finds it.
enum class Keep : uint8_t { kStash, kScratch };
// Where a backward puts what its weight half needs: BW in scratch, layer by layer; BW_input leaves
// all of it for BW_weight, in work.
enum class Halves : uint8_t { kTogether, kApart };

// An operator of a stage, and where all that it touches lies.
//
// A Residual without dropout has no forward of its own: the Linear before it adds the stream. Nor
// has it a backward: the gradient with respect to the stream is the one with respect to the
// Linear's output, and stays where it is until the Linear's weight half has read it. A Rope works
// in place.
//
// With sequence parallelism the stream, the gradient with respect to it and a Norm's statistics
// have S rows. All else has N rows. Peers gather a Norm's output, and the gradients with respect to
// a Residual's input; of a Residual's input, and of the gradients with respect to a Norm's output,
// each peer has the sum in its own rows only.
struct StageOperator {
  struct Weights {
    int64_t weight = 0, wgrad = -1, rounded = -1;  // offsets, as in Tensor
  };
  // Of its input, of the stream (a Residual), of its output, and of its statistics: Norm 1 /
  // deviation [S] and maybe mean [S]; HeadNorm 1 / deviation [N, heads + kv_heads]; Attention
  // [B, heads, T]; Loss [N, 2], only for itself.
  struct Forward {
    Spot in, stream, out, statistics;
    Spot all;  // with sequence parallelism, of an Embedding: N rows, also of gradients
  };
  // Of the gradients with respect to its output and input, and, for a Norm or HeadNorm, to its
  // parameters, one after the other: this micro-batch's part. A Norm's d_in is the sum with `add`,
  // the gradient with respect to the stream so far, which may be at the same place; if there is
  // none, it begins with this one.
  struct Backward {
    Spot d_out, d_in, add, part;
  };

  Operator op;
  int layer = -1;  // of the model; outside of layers -1
  int group = 0;   // what is before, in and after each of the layers, counted in the stage
  std::vector<Weights> parameters;
  Forward forward[2];       // by Keep
  Backward backward[2];     // by Halves
  bool recomputed = false;  // RE runs it
  bool remade = false;      // a backward runs it, too: the weight half after it reads its output

  const Forward& of(Keep keep) const { return forward[static_cast<int>(keep)]; }
  const Backward& of(Halves halves) const { return backward[static_cast<int>(halves)]; }
};

// Everything about one stage, which a plan's regions and values, and kernels, ask for by name. A
// size of 0: this stage has no such value.
struct StageLayout {
  int stage = 0;
  bool first = false;  // has the embeddings
  bool last = false;   // has the final norm, the head and the loss
  int first_layer = 0;
  int layers = 0;
  int tp = 1;  // number of peers; this is the layout of one

  // In model order; the head (or the last stage's copy of a tied embedding) at the end. In a single
  // stage a tied embedding appears once, at the beginning. Adapters follow all others.
  std::vector<Tensor> tensors;
  // How many elements belong to this stage, without that copy; with peers, of the first one. And of
  // those, how many are trained.
  int64_t parameters = 0, trained_parameters = 0;
  int64_t weights_bytes = 0;
  // From here on lie the weights that are trained: what has offset k in wgrad has this plus k.
  int64_t trained = 0;
  // Of what products read of the weights, if activations have two bytes: the same in their type.
  // A GPU has it as a state, a CPU rounds as it multiplies. A multiple of kAlign, as several
  // versions follow one another, and products need aligned operands.
  int64_t rounded_bytes = 0;
  int64_t optimizer_bytes = 0;  // m, laid out as the trained weights, then v
  int64_t optimizer_v = 0;      // where v begins

  // Tied embeddings have two accumulators, one for the look-up (stage 0) and one for the head (last
  // stage); a single stage has both. They are added once, at the end of the step, so the sums are
  // taken in the same order in every split. -1 and 0 if there is none, or untied.
  int64_t wgrad_bytes = 0;
  int64_t tied_lookup = -1;  // offset in wgrad
  int64_t tied_head = -1;    // offset in wgrad
  int64_t tied_bytes = 0;    // of the table, in the stages that take part

  // One double for each block of kNormBlock elements of each tensor.
  int64_t norm_blocks = 0;
  int64_t first_norm_block = 0;  // among those of the whole model

  int64_t tokens_bytes = 0;   // [B, T] int32, first stage
  int64_t targets_bytes = 0;  // [B, T] int32, last stage
  int64_t loss_bytes = 0;     // one double per micro-batch, last stage: the sum over its tokens
  int64_t act_bytes = 0;      // act(s,m) [S, C]; not in the last stage
  int64_t grad_bytes = 0;     // grad(s,m), the same

  std::vector<StageOperator> operators;
  int64_t stream_tokens = 0;  // Job::stream_tokens
  Spot d_stream[2];           // by Halves: where the gradient with respect to the stage's output is
  int64_t kept_bytes = 0;     // of a stash, what a CFW keeps
  int64_t stash_bytes = 0;    // the rest, beyond what the forward read
  int64_t work_bytes = 0;     // beyond the stash

  int64_t exchange = 0;            // offset in scratch: ExchangeBytes, for sums over peers
  int64_t statistics = 0;          // the same: of all peers' parts of the logits, [tp, N, 3]
  int64_t adapter[2] = {};         // the same: of one adapter, [N, rank] each
  int64_t scratch_bytes = 0;       // enough for all but CFW
  int64_t drop_scratch_bytes = 0;  // enough for CFW, too
};

// REQUIRES: CheckJob(job).ok() and 0 <= stage < job.stages().
StageLayout LayoutStage(const Job& job, int stage);

// Norm blocks of the whole model: those of the first peer, then of the next one, and so on.
int64_t NormBlocks(const Job& job);

// A collective of n members sums by direct exchange: each of them receives the other n - 1's parts
// of its own shard, a piece at a time, sums them in the order of the group, and all gather the
// sums. This is the largest piece: on a GPU the whole shard, as each piece costs some 0.2 ms of
// messages there.
constexpr int64_t MostExchangePiece(DeviceKind backend) {
  return backend == DeviceKind::kCuda ? INT64_MAX : kExchangePiece;
}
// The space for one piece from each of the others.
int64_t ExchangeBytes(DeviceKind backend, int64_t members, int64_t shard);

// What tensor-parallel peers do together with `numbers` elements, for which each of them has space.
// kSum: all get the sum of what each has. kScatter: each gets its share of the sum, in its place.
// kGather: each gives its share, and all get all of them. Shares are equal.
enum class PeerWork : uint8_t { kSum, kScatter, kGather };
struct PeerExchange {
  PeerWork work = PeerWork::kSum;
  int64_t numbers = 0;
  Dtype dtype = Dtype::kFp32;

  auto operator<=>(const PeerExchange&) const = default;
};
// All kinds of exchanges: of activations, of what is inside an adapter, of a norm's gradient, of
// statistics of the logits.
std::vector<PeerExchange> PeerExchanges(const Job& job);

}  // namespace pp
