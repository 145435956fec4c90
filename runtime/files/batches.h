// Which sequences of the data make up each micro-batch of each step.
//
// With R replicas of M micro-batches of B sequences, sequence b of micro-batch m of replica r in
// step k, counted from 0, is number ((k*R + r)*M + m)*B + b of the training. At its end the file
// starts again. If whole epochs are trained instead, an epoch begins with the first sequence of the
// file in a new step, and its last step, which the file may not fill, is filled with sequences
// whose targets are all -1: they do not contribute to loss and gradient. The loss is the mean over
// the tokens that count.
#pragma once

#include <cstdint>

#include "runtime/files/dataset.h"
#include "schema/base/status.h"

namespace pp {

// A token to draw instead of a loss: from the logits of a row of a micro-batch; row -1: none.
struct Draw {
  int32_t row = -1;
  uint32_t number = 0;    // of the draw, which determines it together with the seed
  float temperature = 1;  // see kernels/draw.h
};

class Batches {
 public:
  struct Args {
    const Dataset* dataset = nullptr;  // remains the caller's
    int replicas = 1;
    int microbatches = 1;      // M
    int micro_batch_size = 1;  // B
    int sequence_length = 1;   // T
    int64_t epochs = 0;        // 0: steps are counted, not epochs
    // Of the training before step 1, which continues. REQUIRES: with epochs, whole steps like
    // these.
    int64_t sequences_before = 0;
    int64_t repeat_after = 0;  // after this many steps the first sequences repeat; 0: never
  };
  explicit Batches(const Args& args) : args_(args) {}
  virtual ~Batches() = default;

  // Steps of all epochs. REQUIRES: epochs > 0.
  int64_t Steps() const { return args_.epochs * StepsPerEpoch(); }

  // All steps count from 1. The index of a micro-batch's first sequence in the training.
  int64_t FirstSequence(int64_t step, int replica, int micro) const {
    return args_.sequences_before +
           (((step - 1) * args_.replicas + replica) * args_.microbatches + micro) *
               args_.micro_batch_size;
  }
  int64_t PerStep() const {
    return int64_t{args_.replicas} * args_.microbatches * args_.micro_batch_size;
  }
  // Tokens of a step that count.
  int64_t Tokens(int64_t step) const;

  // [B, T] tokens of a micro-batch. Errors: an illegal token.
  virtual Status Inputs(int64_t step, int replica, int micro, int32_t* inputs) const;
  virtual Status Targets(int64_t step, int replica, int micro, int32_t* targets) const;
  virtual Draw DrawAt(int64_t) const { return {}; }

 private:
  int64_t StepsPerEpoch() const { return (args_.dataset->sequences() + PerStep() - 1) / PerStep(); }
  // The file's sequence for number `sequence` of the training; -1: none.
  int64_t InFile(int64_t sequence) const;

  const Args args_;
};

}  // namespace pp
