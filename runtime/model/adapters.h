// The adapters of a Linear (schema/model/lora.h), computed beside its own product:
//
//   forward       u = scale in A^T,   out += u B^T, in the adapter's columns
//   input half    v = scale d_out B,  d_in += v A
//   weight half   u and v again, as nothing of them is saved;  dA (= or +=) v^T in,
//                 dB (= or +=) d_out^T u
//
// u and v, [N, rank] each, lie in scratch. Of tensor-parallel peers, those that share the Linear's
// inputs have parts of u, and those that share its outputs parts of v. Forward and input half add
// them up with the Linear's own parts; the weight half sums them over the peers.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/device/kernels.h"
#include "runtime/model/peer_rows.h"
#include "runtime/model/products.h"
#include "runtime/model/stage_model.h"

namespace pp {

// A parameter as the device's products take it.
inline const void* ForProduct(const OperatorCall& call, size_t index) {
  if (call.rounded[index] != nullptr) return call.rounded[index];
  return call.parameters[index];
}

// N: the type of activations. Of all Linears of a stage.
template <typename N>
class Adapters {
 public:
  Adapters(const Job& job, const StageLayout& layout, const PeerRows<N>* peers, Kernels* kernels)
      : rows_(job.tokens()),
        has_peers_(job.tp > 1),
        places_{layout.adapter[0], layout.adapter[1]},
        peers_(*peers),
        kernels_(*kernels),
        acts_(*kernels),
        products_(layout.operators.size()) {}

  // Of the operator with this index in the stage.
  void Prepare(size_t index, const std::vector<AdapterProducts>& adapters) {
    for (const AdapterProducts& of : adapters) {
      Ids& ids = products_[index].emplace_back();
      ids = {.down = kernels_.Prepare(of.down),
             .up = kernels_.Prepare(of.up),
             .back = kernels_.Prepare(of.back),
             .into = kernels_.Prepare(of.into)};
      for (int i = 0; i < 2; ++i) {
        ids.weight_a[i] = kernels_.Prepare(of.weight_a[i]);
        ids.weight_b[i] = kernels_.Prepare(of.weight_b[i]);
      }
    }
  }

  void Forward(const OperatorCall& call) const {
    const std::vector<Adapter>& adapters = call.placed->op.adapters;
    for (size_t k = 0; k < adapters.size(); ++k) {
      const N* u = Down(call, k);
      N* out = Act(call.out) + adapters[k].first;
      kernels_.Multiply(
          Of(call, k).up,
          {.a = u, .b = ForProduct(call, adapters[k].a + 1), .c = out, .residual = out});
    }
  }

  void BackwardInput(const OperatorCall& call) const {
    const std::vector<Adapter>& adapters = call.placed->op.adapters;
    for (size_t k = 0; k < adapters.size(); ++k) {
      const N* v = Back(call, k);
      N* d_in = Act(call.d_in);
      kernels_.Multiply(
          Of(call, k).into,
          {.a = v, .b = ForProduct(call, adapters[k].a), .c = d_in, .residual = d_in});
    }
  }

  void BackwardWeight(const OperatorCall& call) const {
    const Operator& op = call.placed->op;
    const int update = static_cast<int>(call.stage->accumulate);
    for (size_t k = 0; k < op.adapters.size(); ++k) {
      const Adapter& adapter = op.adapters[k];
      N *u = Down(call, k), *v = Back(call, k);
      if (has_peers_) {
        peers_.Settle();  // one exchange at a time
        peers_.SumAll(op.cut == Cut::kOut ? v : u, adapter.rank);
        peers_.Settle();
      }
      kernels_.Multiply(Of(call, k).weight_a[update],
                        {.a = v, .b = Act(call.in), .c = call.gradients[adapter.a]});
      kernels_.Multiply(
          Of(call, k).weight_b[update],
          {.a = Act(call.d_out) + adapter.first, .b = u, .c = call.gradients[adapter.a + 1]});
    }
  }

 private:
  // Of prepared products; those of gradients by Update.
  struct Ids {
    int down, up, back, into, weight_a[2], weight_b[2];
  };

  static N* Act(std::byte* at) { return reinterpret_cast<N*>(at); }
  const Ids& Of(const OperatorCall& call, size_t k) const { return products_[call.index][k]; }

  N* Down(const OperatorCall& call, size_t k) const {
    const Adapter& adapter = call.placed->op.adapters[k];
    N* u = Act(call.stage->scratch + places_[0]);
    kernels_.Multiply(Of(call, k).down,
                      {.a = Act(call.in), .b = ForProduct(call, adapter.a), .c = u});
    acts_.Scale({.n = rows_ * adapter.rank, .x = u, .factor = adapter.scale});
    return u;
  }
  N* Back(const OperatorCall& call, size_t k) const {
    const Adapter& adapter = call.placed->op.adapters[k];
    N* v = Act(call.stage->scratch + places_[1]);
    kernels_.Multiply(
        Of(call, k).back,
        {.a = Act(call.d_out) + adapter.first, .b = ForProduct(call, adapter.a + 1), .c = v});
    acts_.Scale({.n = rows_ * adapter.rank, .x = v, .factor = adapter.scale});
    return v;
  }

  const int64_t rows_;  // N
  const bool has_peers_;
  const int64_t places_[2];  // of u and v, in scratch
  const PeerRows<N>& peers_;
  Kernels& kernels_;
  ActivationKernels<N>& acts_;
  std::vector<std::vector<Ids>> products_;  // by operator and adapter
};

}  // namespace pp
