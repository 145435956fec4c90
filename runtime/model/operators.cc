#include "runtime/model/operators.h"

#include <algorithm>

#include "runtime/device/activations.h"
#include "runtime/model/adapters.h"
#include "runtime/model/peer_rows.h"
#include "runtime/model/products.h"

namespace pp {
namespace {

using kernels::Update;

// N: the type of activations.
template <typename N>
class KernelOperators : public Operators {
 public:
  KernelOperators(const Job& job, const StageLayout& layout, uint64_t seed, Kernels* kernels,
                  const PeerGroup& group)
      : peers_(job, group),
        tp_(job.tp),
        vocabulary_(job.model.vocab_size),
        batch_(job.micro_batch_size),
        sequence_(job.sequence_length),
        rows_(job.tokens()),
        statistics_(layout.statistics),
        seed_(seed),
        kernels_(*kernels),
        acts_(*kernels),
        adapters_(job, layout, &peers_, kernels) {
    biases_.reserve(layout.operators.size());
    products_.resize(layout.operators.size());
    for (size_t i = 0; i < layout.operators.size(); ++i) {
      if (layout.operators[i].op.kind != OperatorKind::kLinear) continue;
      const LinearProducts linear = ProductsOf(job, layout.operators, i, group.index);
      products_[i] = Prepare(linear);
      adapters_.Prepare(i, linear.adapters);
    }
  }

  bool TakesNext(size_t index) const override { return products_[index].takes_next; }
  bool TakesPrevious(size_t index) const override { return products_[index].takes_previous; }
  bool RunsBeside(size_t index) const override {
    return kernels_.has_second_queue() && products_[index].weight[0] >= 0;
  }

  void Forward(const OperatorCall& call) override {
    const Operator& op = call.placed->op;
    switch (op.kind) {
      case OperatorKind::kEmbedding:
        return Embed(call);
      case OperatorKind::kNorm:
        acts_.LayerNormForward({.rows = peers_.own_rows(),
                                .channels = op.in,
                                .x = Act(call.in),
                                .gamma = call.parameters[0],
                                .beta = call.parameters[1],
                                .y = peers_.Own(Act(call.out), op.out),
                                .mean = Mean(call),
                                .rstd = call.statistics,
                                .epsilon = op.epsilon});
        return peers_.Gather(Act(call.out), op.out);
      case OperatorKind::kLinear:
        kernels_.Multiply(
            products_[call.index].forward,
            {.a = Act(call.in),
             .b = ForProduct(call, 0),
             .c = Act(call.with != nullptr ? call.with->out : call.out),
             .bias = op.has_bias() ? static_cast<const float*>(ForProduct(call, 1)) : nullptr,
             .residual = Act(call.stream),
             .aux = call.with != nullptr ? call.out : nullptr});
        adapters_.Forward(call);
        if (op.cut == Cut::kIn) peers_.Sum(Act(call.out), op.out);
        return;
      case OperatorKind::kAttention:
        return acts_.AttentionForward({.shape = Heads(op),
                                       .qkv = Act(call.in),
                                       .out = Act(call.out),
                                       .lse = call.statistics,
                                       .dropout = Dropout(call),
                                       .first_keys = Keys(call)});
      case OperatorKind::kHeadNorm:
        return acts_.HeadNormForward({.rows = rows_,
                                      .heads = op.heads,
                                      .kv_heads = op.kv_heads,
                                      .head_dim = op.head_dim,
                                      .x = Act(call.in),
                                      .q_gamma = call.parameters[0],
                                      .k_gamma = call.parameters[1],
                                      .y = Act(call.out),
                                      .rstd = call.statistics,
                                      .epsilon = op.epsilon});
      case OperatorKind::kRope:
        return Turn(call, Act(call.out), kernels::Turn::kForward);
      case OperatorKind::kSwiGlu:
        return acts_.SwiGluForward(
            {.rows = rows_, .columns = op.out, .x = Act(call.in), .y = Act(call.out)});
      case OperatorKind::kGelu:
        return acts_.GeluForward(
            {.n = rows_ * op.in, .x = Act(call.in), .y = Act(call.out), .form = Form(op)});
      case OperatorKind::kResidual:
        if (call.in == nullptr) return;  // the Linear has added the stream
        return acts_.Residual({.range = peers_.OwnRange(op.in),
                               .x = Act(call.stream),
                               .y = peers_.Own(Act(call.in), op.in),
                               .out = Act(call.out),
                               .dropout = Dropout(call)});
      case OperatorKind::kLoss:
        if (call.stage->draw_row >= 0) return DrawToken(call);
        if (tp_ > 1) return JoinLoss(call);
        return acts_.CrossEntropyForward({.rows = rows_,
                                          .vocabulary = Tokens(op.in),
                                          .row_stride = op.in,
                                          .padding = op.in - Tokens(op.in),
                                          .logits = Act(call.in),
                                          .target = call.stage->targets,
                                          .losses = reinterpret_cast<double*>(call.statistics),
                                          .loss = call.stage->loss,
                                          .dlogits = MakesGradient(call) ? Act(call.d_in) : nullptr,
                                          .scale = static_cast<float>(call.stage->per_token),
                                          .scaling = call.stage->scaling});
    }
  }

  void BackwardInput(const OperatorCall& call) override {
    const Operator& op = call.placed->op;
    switch (op.kind) {
      case OperatorKind::kEmbedding:
        return;
      case OperatorKind::kNorm:
        acts_.LayerNormBackward(
            {.rows = peers_.own_rows(),
             .channels = op.in,
             .dy = peers_.Own(Act(call.d_out), op.out),
             .x = Act(call.in),
             .gamma = call.parameters[0],
             .mean = Mean(call),
             .rstd = call.statistics,
             .dx = Act(call.d_in),
             .add = Act(call.add),
             .dgamma = call.part,
             .dbeta = op.trains() && op.parameters.size() > 1 ? call.part + op.in : nullptr});
        if (peers_.shares() && op.trains())
          peers_.SumNumbers(call.part, static_cast<int64_t>(op.parameters.size()) * op.in);
        return;
      case OperatorKind::kLinear:
        kernels_.Multiply(products_[call.index].input,
                          {.a = Act(call.d_out),
                           .b = ForProduct(call, 0),
                           .c = Act(call.with != nullptr ? call.with->d_in : call.d_in),
                           .aux = call.with != nullptr ? call.with->in : nullptr});
        adapters_.BackwardInput(call);
        if (op.cut != Cut::kOut) return;
        Settle();  // wait for what was recomputed
        return peers_.Sum(Act(call.d_in), op.in);
      case OperatorKind::kAttention:
        return acts_.AttentionBackward({.shape = Heads(op),
                                        .qkv = Act(call.in),
                                        .out = Act(call.out),
                                        .lse = call.statistics,
                                        .dout = Act(call.d_out),
                                        .dqkv = Act(call.d_in),
                                        .dropout = Dropout(call),
                                        .first_keys = Keys(call)});
      case OperatorKind::kHeadNorm:
        acts_.HeadNormBackward({.rows = rows_,
                                .heads = op.heads,
                                .kv_heads = op.kv_heads,
                                .head_dim = op.head_dim,
                                .x = Act(call.in),
                                .q_gamma = call.parameters[0],
                                .k_gamma = call.parameters[1],
                                .rstd = call.statistics,
                                .d = Act(call.d_in),
                                .dgamma = call.part});
        // A peer has only the sums over its own heads.
        if (tp_ > 1 && op.trains()) peers_.SumNumbers(call.part, 2 * int64_t{op.head_dim});
        return;
      case OperatorKind::kRope:
        return Turn(call, Act(call.d_in), kernels::Turn::kBackward);
      case OperatorKind::kSwiGlu:
        return acts_.SwiGluBackward({.rows = rows_,
                                     .columns = op.out,
                                     .x = Act(call.in),
                                     .dy = Act(call.d_out),
                                     .dx = Act(call.d_in)});
      case OperatorKind::kGelu:
        return acts_.GeluBackward({.n = rows_ * op.in,
                                   .x = Act(call.in),
                                   .dy = Act(call.d_out),
                                   .dx = Act(call.d_in),
                                   .form = Form(op)});
      case OperatorKind::kResidual:
        if (call.d_in == call.d_out) return;
        acts_.Dropout({.range = peers_.OwnRange(op.in),
                       .x = Act(call.d_out),
                       .out = peers_.Own(Act(call.d_in), op.in),
                       .dropout = Dropout(call)});
        return peers_.Gather(Act(call.d_in), op.in);
      case OperatorKind::kLoss:
        return;  // its forward has written the gradient
    }
  }

  void BackwardWeight(const OperatorCall& call) override {
    const Operator& op = call.placed->op;
    switch (op.kind) {
      case OperatorKind::kEmbedding:
        return EmbeddingWeight(call);
      case OperatorKind::kNorm:
        return NormWeight(call, op.in);
      case OperatorKind::kHeadNorm:
        return NormWeight(call, op.head_dim);
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

  // All biases of a group at once: on a GPU each is too small for a kernel of its own.
  void FinishWeights(const StageCall& call) override {
    if (!biases_.empty())
      acts_.BiasGradient({.rows = rows_, .tensors = biases_, .update = call.accumulate});
    biases_.clear();
    kernels_.Join();
  }

  void Settle() override { peers_.Settle(); }

  void Copy(const std::byte* from, int64_t bytes, std::byte* to) override {
    kernels_.Copy(from, bytes, to);
  }

 private:
  static N* Act(std::byte* at) { return reinterpret_cast<N*>(at); }

  // accumulator (= or +=) part.
  void Accumulate(Update update, int64_t n, const float* part, float* accumulator) {
    if (update == Update::kSet) {
      kernels_.Copy(part, n * static_cast<int64_t>(sizeof(float)), accumulator);
    } else {
      kernels_.Add({.n = n, .x = part, .out = accumulator});
    }
  }

  // The valid tokens among those that this peer's part of the vocabulary has room for.
  int64_t Tokens(int64_t room) const {
    return std::clamp<int64_t>(vocabulary_ - peers_.index() * room, 0, room);
  }

  // Of one or two parameters with n elements each.
  void NormWeight(const OperatorCall& call, int64_t n) {
    const Update update = call.stage->accumulate;
    float *one = call.gradients[0], *two = call.gradients[1];
    // In one go if they are adjacent.
    if (two == one + n) return Accumulate(update, 2 * n, call.part, one);
    Accumulate(update, n, call.part, one);
    if (two != nullptr) Accumulate(update, n, call.part + n, two);
  }

  static kernels::GeluForm Form(const Operator& op) {
    return op.gelu == GeluForm::kExact ? kernels::GeluForm::kExact : kernels::GeluForm::kTanh;
  }

  // A peer contributes the rows of its tokens, the first one also those of the positions.
  void Embed(const OperatorCall& call) {
    const Operator& op = call.placed->op;
    const int64_t tokens = op.parameters[0].rows;
    const bool alone = tp_ == 1;
    N* all = peers_.shares() ? Act(call.all) : Act(call.out);
    acts_.EmbeddingForward({.batch = batch_,
                            .tokens = sequence_,
                            .channels = op.out,
                            .first = peers_.index() * tokens,
                            .vocabulary = tokens,
                            .token = call.stage->tokens,
                            .table = call.parameters[0],
                            .position = peers_.index() == 0 ? call.parameters[1] : nullptr,
                            .out = all,
                            .dropout = alone ? Dropout(call) : kernels::DropoutKey{},
                            .place = call.stage->positions});
    if (alone) return;
    peers_.Sum(all, op.out);
    Settle();
    if (!peers_.shares() && op.dropout == 0) return;
    acts_.Dropout({.range = peers_.OwnRange(op.out),
                   .x = peers_.Own(all, op.out),
                   .out = Act(call.out),
                   .dropout = Dropout(call)});
  }

  // Whether the forward of a Loss leaves the gradient in the place of the logits: where these are
  // saved for the backward.
  static bool MakesGradient(const OperatorCall& call) {
    return call.in == call.d_in && call.stage->op != Op::kEvaluate;
  }

  // Each peer writes its own part among zeros, so that their sum contains all parts.
  void JoinLoss(const OperatorCall& call) {
    const Operator& op = call.placed->op;
    float* all = reinterpret_cast<float*>(call.stage->scratch + statistics_);
    const int64_t each = 3 * rows_;
    kernels_.Fill({.n = tp_ * each, .out = all});
    acts_.CrossEntropyPart({.rows = rows_,
                            .vocabulary = Tokens(op.in),
                            .row_stride = op.in,
                            .first = peers_.index() * op.in,
                            .logits = Act(call.in),
                            .target = call.stage->targets,
                            .part = all + peers_.index() * each});
    peers_.SumNumbers(all, tp_ * each);
    Settle();
    kernels_.CrossEntropyJoin({.rows = rows_,
                               .parts = tp_,
                               .all = all,
                               .target = call.stage->targets,
                               .statistics = call.statistics,
                               .loss = call.stage->loss});
    if (!MakesGradient(call)) return;
    acts_.CrossEntropyBackward({.rows = rows_,
                                .vocabulary = Tokens(op.in),
                                .row_stride = op.in,
                                .first = peers_.index() * op.in,
                                .padding = op.in - Tokens(op.in),
                                .logits = Act(call.d_in),
                                .target = call.stage->targets,
                                .statistics = call.statistics,
                                .scale = static_cast<float>(call.stage->per_token),
                                .scaling = call.stage->scaling});
  }

  // Each peer draws from its own tokens, and the best one is the best of all.
  void DrawToken(const OperatorCall& call) {
    const Operator& op = call.placed->op;
    float* all = reinterpret_cast<float*>(call.stage->scratch + statistics_);
    const int64_t each = 3 * rows_;  // as in PeerExchanges
    float* mine = tp_ > 1 ? all + peers_.index() * each : call.statistics;
    if (tp_ > 1) kernels_.Fill({.n = tp_ * each, .out = all});
    acts_.Draw({.n = Tokens(op.in),
                .first = peers_.index() * op.in,
                .logits = Act(call.in) + call.stage->draw_row * op.in,
                .temperature = call.stage->temperature,
                .seed = seed_,
                .number = call.stage->draw_number,
                .best = mine});
    if (tp_ > 1) {
      peers_.SumNumbers(all, tp_ * each);
      Settle();
    }
    kernels_.DrawJoin(
        {.parts = tp_, .stride = each, .best = tp_ > 1 ? all : mine, .token = call.stage->loss});
  }

  // Ids of prepared matrix products; that to the weights by Update.
  struct Products {
    int forward = -1, input = -1, weight[2] = {-1, -1};
    bool takes_next = false, takes_previous = false;
  };

  Products Prepare(const LinearProducts& linear) {
    kernels::MatmulShape forward = linear.forward, input = linear.input;
    Products ids;
    ids.takes_next = Fuse(linear.next, &forward);
    ids.takes_previous = Fuse(linear.previous, &input);
    ids.forward = kernels_.Prepare(forward);
    ids.input = kernels_.Prepare(input);
    for (int i = 0; i < 2 && linear.trained; ++i)
      ids.weight[i] = kernels_.Prepare(linear.weight[i]);
    return ids;
  }

  // Gives a product the epilogue if the device prefers that.
  bool Fuse(kernels::Epilogue epilogue, kernels::MatmulShape* shape) {
    kernels::MatmulShape fused = *shape;
    fused.epilogue = epilogue;
    if (epilogue == kernels::Epilogue::kNone || !kernels_.Fuses(fused)) return false;
    *shape = fused;
    return true;
  }

  void LinearWeight(const OperatorCall& call) {
    const Operator& op = call.placed->op;
    adapters_.BackwardWeight(call);
    if (!op.parameters[0].trainable) return;
    const Update update = call.stage->accumulate;
    const bool transposed = op.matrix == Matrix::kOutIn;
    const int product = products_[call.index].weight[static_cast<int>(update)];
    const kernels::MatmulArgs args = {.a = transposed ? Act(call.d_out) : Act(call.in),
                                      .b = transposed ? Act(call.in) : Act(call.d_out),
                                      .c = call.gradients[0]};
    call.beside ? kernels_.MultiplyBeside(product, args) : kernels_.Multiply(product, args);
    if (!op.has_bias()) return;
    biases_.push_back({op.out, Act(call.d_out), call.gradients[1]});
  }

  // A micro-batch touches only the rows of its tokens and positions.
  void EmbeddingWeight(const OperatorCall& call) {
    const Operator& op = call.placed->op;
    if (peers_.shares()) {
      kernels_.Copy(call.d_out, peers_.own_rows() * op.out * static_cast<int64_t>(sizeof(N)),
                    peers_.Own(Act(call.all), op.out));
      peers_.Gather(Act(call.all), op.out);
      Settle();
    }
    for (size_t i = 0; i < op.parameters.size() && call.stage->accumulate == Update::kSet; ++i)
      kernels_.Fill({.n = op.parameters[i].rows * op.parameters[i].cols, .out = call.gradients[i]});
    acts_.EmbeddingBackward({.batch = batch_,
                             .tokens = sequence_,
                             .channels = op.out,
                             .first = peers_.index() * op.parameters[0].rows,
                             .vocabulary = op.parameters[0].rows,
                             .token = call.stage->tokens,
                             .dout = peers_.shares() ? Act(call.all) : Act(call.d_out),
                             .dtable = call.gradients[0],
                             .dposition = call.gradients[1],
                             .dropout = Dropout(call),
                             .place = call.stage->positions});
  }

  // Queries and keys are adjacent.
  void Turn(const OperatorCall& call, N* x, kernels::Turn turn) const {
    const Operator& op = call.placed->op;
    const auto [cosine, sine] = kernels_.angles();
    acts_.Rope({.batch = batch_,
                .tokens = sequence_,
                .heads = op.heads + op.kv_heads,
                .head_dim = op.head_dim,
                .row_stride = op.out,
                .cosine = cosine,
                .sine = sine,
                .x = x,
                .turn = turn,
                .position = call.stage->positions});
  }

  // RMSNorm has none.
  float* Mean(const OperatorCall& call) const {
    return call.placed->op.parameters.size() > 1 ? call.statistics + peers_.own_rows() : nullptr;
  }

  kernels::AttentionShape Heads(const Operator& op) const {
    return {batch_, sequence_, op.heads, op.head_dim, op.kv_heads, peers_.index() * op.heads};
  }

  kernels::FirstKeys Keys(const OperatorCall& call) const {
    if (call.stage->first_keys == nullptr) return {kernels_.first_keys()};
    return {call.stage->first_keys, sequence_};
  }

  kernels::DropoutKey Dropout(const OperatorCall& call) const {
    const Operator& op = call.placed->op;
    const int layer = std::max(call.placed->layer, 0);
    return {.seed = seed_,
            .site = static_cast<uint32_t>(layer * 8 + op.dropout_id),
            .first_sequence = static_cast<uint32_t>(call.stage->first_sequence),
            .p = call.stage->op == Op::kEvaluate ? 0 : op.dropout};
  }

  const PeerRows<N> peers_;
  const int64_t tp_, vocabulary_;
  const int64_t batch_, sequence_;
  const int64_t rows_;        // N
  const int64_t statistics_;  // offset in scratch
  const uint64_t seed_;
  Kernels& kernels_;
  ActivationKernels<N>& acts_;
  Adapters<N> adapters_;
  std::vector<Products> products_;              // by operator
  std::vector<kernels::BiasTensor<N>> biases_;  // of this group's weight halves
};

}  // namespace

StageModel MakeStage(const Job& job, int stage, uint64_t seed, Kernels* kernels,
                     const PeerGroup& group) {
  StageLayout layout = LayoutStage(job, stage);
  auto operators = ForActivations(job.dtype, [&]<typename N>() -> std::unique_ptr<Operators> {
    return std::make_unique<KernelOperators<N>>(job, layout, seed, kernels, group);
  });
  return StageModel(std::move(layout), std::move(operators));
}

}  // namespace pp
