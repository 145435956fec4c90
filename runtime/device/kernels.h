// The kernels of a rank's device, on its compute lane: what operators are computed with. Each kind
// of device brings its own.
//
// Args are those of //kernels, with addresses of the device. A call may return before its kernel
// has run; calls run in their order. What they need beside their operands they have themselves
// (schema/model/workspace.h): the caller sets neither Args::scratch nor Args::helpers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"
#include "schema/base/status.h"

namespace pp {

// N: the type of activations.
template <typename N>
class ActivationKernels {
 public:
  virtual ~ActivationKernels() = default;

#define PP_KERNEL(Name) virtual void Name(const kernels::Name##Args<N>& args) = 0;
  PP_ACTIVATION_KERNELS(PP_KERNEL)
#undef PP_KERNEL
};

class Kernels : public ActivationKernels<float>,
                public ActivationKernels<kernels::BFloat16>,
                public ActivationKernels<kernels::Float16> {
 public:
#define PP_KERNEL(Name) virtual void Name(const kernels::Name##Args& args) = 0;
  PP_PLAIN_KERNELS(PP_KERNEL)
#undef PP_KERNEL

  // Prepares what matrix products of a shape need, once; ids count from 0.
  virtual int Prepare(const kernels::MatmulShape& shape) = 0;
  virtual void Multiply(int product, const kernels::MatmulArgs& args) = 0;
  // Whether there is a second queue beside that of all other calls: for products that nothing reads
  // before the next Join.
  virtual bool has_second_queue() const { return false; }
  // Begins after all calls so far, and may be over only after Join. REQUIRES: a second queue.
  virtual void MultiplyBeside(int /*product*/, const kernels::MatmulArgs&) { PP_CHECK(false); }
  // Later calls begin after all of these.
  virtual void Join() {}
  // Whether a product is better computed with its epilogue than with separate kernels after it. The
  // answer depends only on the shape, the kind of device and the file of --gemms, as bits do.
  virtual bool Fuses(const kernels::MatmulShape&) { return false; }

  virtual void Copy(const void* from, int64_t bytes, void* to) = 0;
  // How products take weights and biases. kNone: in fp32; else the caller rounds them, by Round or
  // as AdamW writes them.
  virtual kernels::Rounding rounding() const { return kernels::Rounding::kNone; }
  virtual void Round(const kernels::RoundArgs&) { PP_CHECK(false); }
  // Of the job's Rope (rope_angles.h), [T, D/2] each; of shapes T is the longest's.
  struct Angles {
    const float *cosine, *sine;
  };
  virtual Angles angles() const = 0;
  // Of the job's Attention (first_keys.h), [T]; null: each query sees all keys up to its own.
  virtual const int32_t* first_keys() const = 0;

  // What they have allocated outside the arena.
  virtual int64_t bytes() const { return 0; }
};

}  // namespace pp
