#include "runtime/model/operators.h"

#include <algorithm>
#include <type_traits>

#include "runtime/device/rope_angles.h"

namespace pp {
namespace {

using kernels::Operands;
using kernels::Update;

// N: the type of activations.
template <typename N>
class KernelOperators : public Operators {
  static constexpr bool kHalf = std::is_same_v<N, kernels::BFloat16>;

 public:
  KernelOperators(const Job& job, const StageLayout& layout, uint64_t seed, Kernels* kernels,
                  const PeerGroup& group)
      : group_(group),
        tp_(job.tp),
        vocabulary_(job.model.vocab_size),
        batch_(job.micro_batch_size),
        sequence_(job.sequence_length),
        rows_(job.tokens()),
        stream_(job.stream_tokens()),
        shares_(job.sequence_parallel),
        scratch_(layout.kernels),
        angles_(layout.angles),
        statistics_(layout.statistics),
        seed_(seed),
        kernels_(*kernels),
        acts_(*kernels) {
    PP_CHECK((tp_ > 1) == (group.peers != nullptr));
    for (const StageOperator& placed : layout.operators) {
      products_.push_back(placed.op.kind == OperatorKind::kLinear ? Prepare(placed) : Products{});
      if (placed.op.kind == OperatorKind::kRope)
        turns_ = RopeTurns(placed.op.rope, placed.op.head_dim);
    }
  }

  void Begin(const StageCall& call) override {
    if (turns_.empty()) return;
    kernels_.Angles(turns_, sequence_, Angles(call));
  }

  void Forward(const OperatorCall& call) override {
    const Operator& op = call.placed->op;
    switch (op.kind) {
      case OperatorKind::kEmbedding:
        return Embed(call);
      case OperatorKind::kNorm:
        acts_.LayerNormForward({.rows = stream_,
                                .channels = op.in,
                                .x = Act(call.in),
                                .gamma = call.parameters[0],
                                .beta = call.parameters[1],
                                .y = Own(Act(call.out), op.out),
                                .mean = Mean(call),
                                .rstd = call.statistics,
                                .epsilon = op.epsilon});
        return Gather(Act(call.out), op.out);
      case OperatorKind::kLinear:
        Multiply(call, products_[call.index].forward,
                 {.a = Act(call.in),
                  .b = call.parameters[0],
                  .c = Act(call.out),
                  .bias = call.parameters[1],
                  .residual = Act(call.stream)});
        if (op.cut == Cut::kIn) Sum(Act(call.out), op.out);
        return;
      case OperatorKind::kAttention:
        return acts_.AttentionForward({.shape = Heads(op),
                                       .qkv = Act(call.in),
                                       .out = Act(call.out),
                                       .lse = call.statistics,
                                       .dropout = Dropout(call),
                                       .scratch = Scratch(call)});
      case OperatorKind::kRope:
        return Turn(call, Act(call.out), kernels::Turn::kForward);
      case OperatorKind::kSwiGlu:
        return acts_.SwiGluForward(
            {.rows = rows_, .columns = op.out, .x = Act(call.in), .y = Act(call.out)});
      case OperatorKind::kGelu:
        return acts_.GeluForward({.n = rows_ * op.in, .x = Act(call.in), .y = Act(call.out)});
      case OperatorKind::kResidual:
        if (call.in == nullptr) return;  // the Linear has added the stream
        return acts_.Residual({.range = Range(op.in),
                               .x = Act(call.stream),
                               .y = Own(Act(call.in), op.in),
                               .out = Act(call.out),
                               .dropout = Dropout(call)});
      case OperatorKind::kLoss:
        if (call.stage->draw_row >= 0) return DrawToken(call);
        if (tp_ > 1) return JoinLoss(call);
        return acts_.CrossEntropyForward({.rows = rows_,
                                          .vocabulary = op.in,
                                          .row_stride = op.stride,
                                          .logits = Act(call.in),
                                          .target = call.stage->targets,
                                          .statistics = call.statistics,
                                          .loss = call.stage->loss});
    }
  }

  void BackwardInput(const OperatorCall& call) override {
    const Operator& op = call.placed->op;
    switch (op.kind) {
      case OperatorKind::kEmbedding:
        return;
      case OperatorKind::kNorm:
        acts_.LayerNormBackward({.rows = stream_,
                                 .channels = op.in,
                                 .dy = Own(Act(call.d_out), op.out),
                                 .x = Act(call.in),
                                 .gamma = call.parameters[0],
                                 .mean = Mean(call),
                                 .rstd = call.statistics,
                                 .dx = Act(call.d_in),
                                 .dx_update = call.placed->begins ? Update::kSet : Update::kAdd,
                                 .dgamma = call.part,
                                 .dbeta = op.parameters.size() > 1 ? call.part + op.in : nullptr});
        if (shares_)
          group_.peers->Start({PeerWork::kSum, static_cast<int64_t>(op.parameters.size()) * op.in},
                              call.part);
        return;
      case OperatorKind::kLinear:
        Multiply(call, products_[call.index].input,
                 {.a = Act(call.d_out), .b = call.parameters[0], .c = Act(call.d_in)});
        if (op.cut != Cut::kOut) return;
        Settle();  // what was made again
        return Sum(Act(call.d_in), op.in);
      case OperatorKind::kAttention:
        return acts_.AttentionBackward({.shape = Heads(op),
                                        .qkv = Act(call.in),
                                        .out = Act(call.out),
                                        .lse = call.statistics,
                                        .dout = Act(call.d_out),
                                        .dqkv = Act(call.d_in),
                                        .dropout = Dropout(call),
                                        .scratch = Scratch(call)});
      case OperatorKind::kRope:
        return Turn(call, Act(call.d_in), kernels::Turn::kBackward);
      case OperatorKind::kSwiGlu:
        return acts_.SwiGluBackward({.rows = rows_,
                                     .columns = op.out,
                                     .x = Act(call.in),
                                     .dy = Act(call.d_out),
                                     .dx = Act(call.d_in)});
      case OperatorKind::kGelu:
        return acts_.GeluBackward(
            {.n = rows_ * op.in, .x = Act(call.in), .dy = Act(call.d_out), .dx = Act(call.d_in)});
      case OperatorKind::kResidual:
        acts_.Dropout({.range = Range(op.in),
                       .x = Act(call.d_out),
                       .out = Own(Act(call.d_in), op.in),
                       .dropout = Dropout(call)});
        return Gather(Act(call.d_in), op.in);
      case OperatorKind::kLoss:
        return acts_.CrossEntropyBackward({.rows = rows_,
                                           .vocabulary = Tokens(op.in),
                                           .row_stride = op.stride,
                                           .first = group_.index * op.in,
                                           .padding = op.in - Tokens(op.in),
                                           .logits = Act(call.d_in),
                                           .target = call.stage->targets,
                                           .statistics = call.statistics,
                                           .scale = static_cast<float>(call.stage->loss_scale)});
    }
  }

  void BackwardWeight(const OperatorCall& call) override {
    const Operator& op = call.placed->op;
    const Update update = call.stage->accumulate;
    switch (op.kind) {
      case OperatorKind::kEmbedding:
        return EmbeddingWeight(call);
      case OperatorKind::kNorm:
        for (size_t i = 0; i < op.parameters.size(); ++i)
          Accumulate(update, op.in, call.part + i * op.in, call.gradients[i]);
        return;
      case OperatorKind::kLinear:
        return LinearWeight(call);
      case OperatorKind::kRope:
      case OperatorKind::kAttention:
      case OperatorKind::kGelu:
      case OperatorKind::kSwiGlu:
      case OperatorKind::kResidual:
      case OperatorKind::kLoss:
        return;  // no parameters
    }
  }

  void Settle() override {
    if (group_.peers != nullptr) group_.peers->Wait();
  }

  void Copy(const std::byte* from, int64_t bytes, std::byte* to) override {
    kernels_.Copy(from, bytes, to);
  }

 private:
  static constexpr kernels::MatmulNumbers kForward =
      kHalf ? kernels::MatmulNumbers::kBf16 : kernels::MatmulNumbers::kFp32;
  static constexpr kernels::MatmulNumbers kWeight =
      kHalf ? kernels::MatmulNumbers::kBf16Sum : kernels::MatmulNumbers::kFp32;
  static constexpr Dtype kDtype = kHalf ? Dtype::kBf16 : Dtype::kFp32;

  static N* Act(std::byte* at) { return reinterpret_cast<N*>(at); }

  // With sequence parallelism, of all rows this peer's own.
  N* Own(N* all, int64_t width) const {
    return shares_ ? all + group_.index * stream_ * width : all;
  }
  kernels::MaskedRange Range(int64_t width) const {
    return {shares_ ? group_.index * stream_ * width : 0, stream_ * width, sequence_ * width};
  }
  // Begins to add up what each peer has of N rows, of which it then has all, or its own; Settle
  // ends it.
  void Sum(N* rows, int64_t width) {
    if (group_.peers == nullptr) return;
    group_.peers->Start({shares_ ? PeerWork::kScatter : PeerWork::kSum, rows_ * width, kDtype},
                        rows);
  }
  // Begins to bring the other peers' own rows.
  void Gather(N* rows, int64_t width) {
    if (shares_) group_.peers->Start({PeerWork::kGather, rows_ * width, kDtype}, rows);
  }

  // accumulator (= or +=) part.
  void Accumulate(Update update, int64_t n, const float* part, float* accumulator) {
    if (update == Update::kSet) {
      kernels_.Copy(part, n * static_cast<int64_t>(sizeof(float)), accumulator);
    } else {
      kernels_.Add({.n = n, .x = part, .out = accumulator});
    }
  }

  // Of so many tokens that this peer's part of the vocabulary has room for, those that there are.
  int64_t Tokens(int64_t room) const {
    return std::clamp<int64_t>(vocabulary_ - group_.index * room, 0, room);
  }

  // A peer gives the rows of its tokens, the first one also those of the positions.
  void Embed(const OperatorCall& call) {
    const Operator& op = call.placed->op;
    const int64_t tokens = op.parameters[0].rows;
    const bool alone = tp_ == 1;
    N* all = shares_ ? Act(call.all) : Act(call.out);
    acts_.EmbeddingForward({.batch = batch_,
                            .tokens = sequence_,
                            .channels = op.out,
                            .first = group_.index * tokens,
                            .vocabulary = tokens,
                            .token = call.stage->tokens,
                            .table = call.parameters[0],
                            .position = group_.index == 0 ? call.parameters[1] : nullptr,
                            .out = all,
                            .dropout = alone ? Dropout(call) : kernels::DropoutKey{}});
    if (alone) return;
    Sum(all, op.out);
    Settle();
    if (!shares_ && op.dropout == 0) return;
    acts_.Dropout({.range = Range(op.out),
                   .x = Own(all, op.out),
                   .out = Act(call.out),
                   .dropout = Dropout(call)});
  }

  // Each peer writes its own part among zeros, so that their sum is all parts.
  void JoinLoss(const OperatorCall& call) {
    const Operator& op = call.placed->op;
    float* all = reinterpret_cast<float*>(call.stage->scratch + statistics_);
    const int64_t each = 3 * rows_;
    kernels_.Fill({.n = tp_ * each, .out = all});
    acts_.CrossEntropyPart({.rows = rows_,
                            .vocabulary = Tokens(op.in),
                            .row_stride = op.stride,
                            .first = group_.index * op.in,
                            .logits = Act(call.in),
                            .target = call.stage->targets,
                            .part = all + group_.index * each});
    group_.peers->Start({PeerWork::kSum, tp_ * each}, all);
    Settle();
    kernels_.CrossEntropyJoin({.rows = rows_,
                               .parts = tp_,
                               .all = all,
                               .target = call.stage->targets,
                               .statistics = call.statistics,
                               .loss = call.stage->loss});
  }

  // Each peer draws of its own tokens, and the best one is that of all.
  void DrawToken(const OperatorCall& call) {
    const Operator& op = call.placed->op;
    float* all = reinterpret_cast<float*>(call.stage->scratch + statistics_);
    const int64_t each = 3 * rows_;  // as PeerExchanges has it
    float* mine = tp_ > 1 ? all + group_.index * each : call.statistics;
    if (tp_ > 1) kernels_.Fill({.n = tp_ * each, .out = all});
    acts_.Draw({.n = Tokens(op.in),
                .first = group_.index * op.in,
                .logits = Act(call.in) + call.stage->draw_row * op.stride,
                .temperature = call.stage->temperature,
                .seed = seed_,
                .number = call.stage->draw_number,
                .best = mine});
    if (tp_ > 1) {
      group_.peers->Start({PeerWork::kSum, tp_ * each}, all);
      Settle();
    }
    kernels_.DrawJoin(
        {.parts = tp_, .stride = each, .best = tp_ > 1 ? all : mine, .token = call.stage->loss});
  }

  // Ids of prepared matrix products; that to the weights by Update.
  struct Products {
    int forward = -1, input = -1, weight[2] = {-1, -1};
  };

  Products Prepare(const StageOperator& placed) {
    const Operator& op = placed.op;
    const int64_t n = rows_, in = op.in, out = op.out, stride = op.stride;
    const bool turned = op.matrix == Matrix::kOutIn;
    // Of peers whose outputs are added, the first one adds bias and stream.
    const bool adds = op.cut != Cut::kIn || group_.index == 0;
    Products ids;
    ids.forward = kernels_.Prepare(
        {.m = n,
         .n = out,
         .k = in,
         .operands = turned ? Operands::kNT : Operands::kNN,
         .bias =
             op.parameters.size() > 1 && adds ? kernels::WithBias::kYes : kernels::WithBias::kNo,
         .residual = placed.of(Keep::kStash).stream && adds ? kernels::WithResidual::kYes
                                                            : kernels::WithResidual::kNo,
         .ldc = stride,
         .numbers = kForward});
    ids.input = kernels_.Prepare({.m = n,
                                  .n = in,
                                  .k = out,
                                  .operands = turned ? Operands::kNN : Operands::kNT,
                                  .lda = stride,
                                  .numbers = kForward});
    for (const Update update : {Update::kSet, Update::kAdd}) {
      ids.weight[static_cast<int>(update)] = kernels_.Prepare({.m = turned ? out : in,
                                                               .n = turned ? in : out,
                                                               .k = n,
                                                               .operands = Operands::kTN,
                                                               .update = update,
                                                               .lda = turned ? stride : in,
                                                               .ldb = turned ? in : stride,
                                                               .numbers = kWeight});
    }
    return ids;
  }

  void Multiply(const OperatorCall& call, int product, kernels::MatmulArgs args) {
    args.scratch = Scratch(call);
    kernels_.Multiply(product, args);
  }

  void LinearWeight(const OperatorCall& call) {
    const Operator& op = call.placed->op;
    const Update update = call.stage->accumulate;
    const bool turned = op.matrix == Matrix::kOutIn;
    Multiply(call, products_[call.index].weight[static_cast<int>(update)],
             {.a = turned ? Act(call.d_out) : Act(call.in),
              .b = turned ? Act(call.in) : Act(call.d_out),
              .c = call.gradients[0]});
    if (op.parameters.size() < 2) return;
    acts_.BiasGradient({.rows = rows_,
                        .columns = op.out,
                        .dy = Act(call.d_out),
                        .dbias = call.gradients[1],
                        .update = update});
  }

  // A micro-batch touches only the rows of its tokens and positions.
  void EmbeddingWeight(const OperatorCall& call) {
    const Operator& op = call.placed->op;
    if (shares_) {
      kernels_.Copy(call.d_out, stream_ * op.out * static_cast<int64_t>(sizeof(N)),
                    Own(Act(call.all), op.out));
      Gather(Act(call.all), op.out);
      Settle();
    }
    for (size_t i = 0; i < op.parameters.size() && call.stage->accumulate == Update::kSet; ++i)
      kernels_.Fill({.n = op.parameters[i].rows * op.parameters[i].cols, .out = call.gradients[i]});
    acts_.EmbeddingBackward({.batch = batch_,
                             .tokens = sequence_,
                             .channels = op.out,
                             .first = group_.index * op.parameters[0].rows,
                             .vocabulary = op.parameters[0].rows,
                             .token = call.stage->tokens,
                             .dout = shares_ ? Act(call.all) : Act(call.d_out),
                             .dtable = call.gradients[0],
                             .dposition = call.gradients[1],
                             .dropout = Dropout(call)});
  }

  float* Angles(const StageCall& call) const {
    return reinterpret_cast<float*>(call.scratch + angles_);
  }

  // Queries and keys lie side by side.
  void Turn(const OperatorCall& call, N* x, kernels::Turn turn) const {
    const Operator& op = call.placed->op;
    const float* cosine = Angles(*call.stage);
    acts_.Rope({.batch = batch_,
                .tokens = sequence_,
                .heads = op.heads + op.kv_heads,
                .head_dim = op.head_dim,
                .row_stride = op.stride,
                .cosine = cosine,
                .sine = cosine + sequence_ * op.head_dim / 2,
                .x = x,
                .turn = turn});
  }

  // RMSNorm has none.
  float* Mean(const OperatorCall& call) const {
    return call.placed->op.parameters.size() > 1 ? call.statistics + stream_ : nullptr;
  }

  kernels::AttentionShape Heads(const Operator& op) const {
    return {batch_, sequence_, op.heads, op.head_dim, op.kv_heads, group_.index * op.heads};
  }

  kernels::DropoutKey Dropout(const OperatorCall& call) const {
    const Operator& op = call.placed->op;
    const int layer = std::max(call.placed->layer, 0);
    return {.seed = seed_,
            .site = static_cast<uint32_t>(layer * 8 + op.dropout_id),
            .first_sequence = static_cast<uint32_t>(call.stage->first_sequence),
            .p = call.stage->op == Op::kEvaluate ? 0 : op.dropout};
  }

  void* Scratch(const OperatorCall& call) const { return call.stage->scratch + scratch_; }

  const PeerGroup group_;
  const int64_t tp_, vocabulary_;
  const int64_t batch_, sequence_;
  const int64_t rows_, stream_;                  // N, S
  const bool shares_;                            // sequence parallelism
  const int64_t scratch_, angles_, statistics_;  // offsets in scratch
  const uint64_t seed_;
  Kernels& kernels_;
  ActivationKernels<N>& acts_;
  std::vector<Products> products_;  // by operator
  std::vector<double> turns_;       // of a Rope, by pair; empty: there is none
};

}  // namespace

StageModel MakeStage(const Job& job, int stage, uint64_t seed, Kernels* kernels,
                     const PeerGroup& group) {
  StageLayout layout = LayoutStage(job, stage);
  std::unique_ptr<Operators> operators;
  switch (job.dtype) {
    case Dtype::kFp32:
      operators = std::make_unique<KernelOperators<float>>(job, layout, seed, kernels, group);
      break;
    case Dtype::kBf16:
      operators =
          std::make_unique<KernelOperators<kernels::BFloat16>>(job, layout, seed, kernels, group);
      break;
  }
  return StageModel(std::move(layout), std::move(operators));
}

}  // namespace pp
