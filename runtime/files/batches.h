// Which sequences of the data make up each micro-batch of each step.
//
// With R replicas of M micro-batches of B sequences, sequence b of micro-batch m of replica r in
// step k, counted from 0, is number ((k*R + r)*M + m)*B + b of the training; where M differs from
// step to step (schema/model/batch_ramp.h), what a step has begins where that of the one before
// ends. Where micro-batches have several shapes (schema/model/shapes.h), each takes as many
// sequences as its shape has, and of each of them as many of its first tokens. At its end the data
// starts again. If whole epochs are trained instead, an epoch begins with the first sequence of the
// data in a new step, and its last step, which the data may not fill, is one of as few
// micro-batches as hold the rest, if the plan has such, and filled with sequences whose targets are
// all -1: they do not contribute to loss and gradient. The loss is the mean over the tokens that
// count, and so is a validation's, which is a pass over the data or its beginning.
//
// Shuffled, each pass has the same sequences in an order of its own (permutation.h): what is number
// i in the pass is the data's sequence At(i).
//
// A training that continues does so at a position in the data, whatever its batches are now. It is
// how far the pass has come, in sequences, also where they are shuffled.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "runtime/files/dataset.h"
#include "schema/base/status.h"
#include "schema/model/batch_ramp.h"
#include "schema/model/shapes.h"

namespace pp {

// A token to draw instead of a loss: from the logits of a row of a micro-batch; row -1: none.
struct Draw {
  int32_t row = -1;
  uint32_t number = 0;    // of the draw, which determines it together with the seed
  float temperature = 1;  // see kernels/draw.h
};

// A place in the data: passes over all of it, and sequences of the next one, fewer than it has.
struct Position {
  int64_t pass = 0, sequence = 0;
};

class Batches {
 public:
  struct Args {
    const Dataset* dataset = nullptr;  // remains the caller's
    int replicas = 1;
    int microbatches = 1;      // M, of the largest steps
    int micro_batch_size = 1;  // B
    int sequence_length = 1;   // T
    Shapes shapes = {};        // given: instead of B and T, which are the largest's
    BatchRamp ramp = {};       // of the training; none: all steps have M
    std::vector<int32_t> sizes =
        {};                    // of the steps that there are, ascending; none: as the ramp has
    int64_t steps_before = 0;  // of the training before step 1
    int64_t epochs = 0;        // of the training; 0: steps are counted, not epochs
    // Of the training before step 1, which continues: where it is, and how many sequences it has
    // counted, also those that fill a last step.
    Position from;
    int64_t sequences_before = 0;
    int64_t repeat_after = 0;  // after this many steps the first sequences repeat; 0: never
    // The seed of a shuffled order; none: that of the data. Not with repeat_after.
    std::optional<uint64_t> shuffle;
  };
  explicit Batches(const Args& args);
  virtual ~Batches() = default;

  // All steps count from 1. Those to the end of the last epoch. REQUIRES: epochs > 0.
  int64_t Steps() const;

  // M of a step.
  int Microbatches(int64_t step) const;
  // Sequences that the training has counted before a step: a short last step of an epoch counts as
  // many as the others, so that this does not depend on the steps that a plan has.
  int64_t CountedBefore(int64_t step) const;
  // The index of a micro-batch's first sequence in the training.
  int64_t FirstSequence(int64_t step, int replica, int micro) const {
    return CountedBefore(step) + IndexOf(step, replica, micro);
  }
  int64_t PerStep(int64_t step) const { return PerStepOf(Microbatches(step)); }
  // Where the training is before a step.
  Position Before(int64_t step) const;
  // Targets of a step, in all replicas and micro-batches: all that it computes with, those that
  // count, and 1 / that, or 0 if none does: such a step makes no update. Errors, of these and
  // of EmptySteps: the data's target bits cannot be read. They allocate nothing unless there is
  // one, and remember the last few steps; any number of threads can ask.
  int64_t Positions(int64_t step) const;
  virtual Result<int64_t> Tokens(int64_t step) const;
  Result<double> PerToken(int64_t step) const;
  // How many steps before that one have none. It is counted on from the step that was asked for
  // last, and so costs nothing as steps go on.
  virtual Result<int64_t> EmptySteps(int64_t step) const;

  // B and T of a micro-batch.
  Extent ExtentOf(int micro) const {
    if (shape_of_.empty()) return {args_.micro_batch_size, args_.sequence_length};
    return args_.shapes.runs[shape_of_[micro]].extent;
  }
  // [B, T] tokens of a micro-batch. Errors: an illegal token.
  virtual Status Inputs(int64_t step, int replica, int micro, int32_t* inputs) const;
  virtual Status Targets(int64_t step, int replica, int micro, int32_t* targets) const;
  // Whether sequences are packed documents, and each token's position in its own, [B, T].
  bool has_documents() const { return args_.dataset != nullptr && args_.dataset->has_documents(); }
  Status DocumentPositions(int64_t step, int replica, int micro, int32_t* positions) const;
  // The length of the document that a mean token is in, of those steps of the first replica: its
  // part in a sequence counts. Errors: those of DocumentPositions.
  Result<double> MeanDocument(int64_t first_step, int64_t last_step) const;
  virtual Draw DrawAt(int64_t) const { return {}; }

 private:
  // Steps of one size, one after the other: the first of them, and how far the training is then.
  struct Stretch {
    int64_t first = 1;
    int microbatches = 1;
    Position from;
    int64_t counted = 0;
  };
  int64_t PerStepOf(int microbatches) const { return args_.replicas * PerReplica(microbatches); }
  int64_t PerReplica(int microbatches) const {
    return shape_of_.empty() ? int64_t{microbatches} * args_.micro_batch_size : first_of_.back();
  }
  // In its step, of a micro-batch's first sequence.
  int64_t IndexOf(int64_t step, int replica, int micro) const {
    return replica * PerReplica(Microbatches(step)) +
           (shape_of_.empty() ? int64_t{micro} * args_.micro_batch_size : first_of_[micro]);
  }
  // Steps of a stretch that so many sequences take.
  int64_t StepsFor(const Stretch& stretch, int64_t sequences) const {
    const int64_t each = PerStepOf(stretch.microbatches);
    return (sequences + each - 1) / each;
  }
  void AddStretch(int64_t first, int microbatches);
  const Stretch& StretchOf(int64_t step) const;
  Position Before(const Stretch& stretch, int64_t step) const;
  // Where sequence i of a step is; past the end of an epoch: no less than pass_.
  Position PlaceOf(int64_t step, int64_t i) const;
  // The number of the data's sequence there; -1: none.
  int64_t InData(const Position& place) const;
  // Calls f(n, row) with that number for each sequence of a micro-batch, and its row of [B, T].
  template <typename F>
  Status ForEachSequence(int64_t step, int replica, int micro, int32_t* rows, F f) const;
  // Calls f(n, count, length) for those of a step that there are, `count` of which follow each
  // other; `length`: of one, how many of its tokens.
  template <typename F>
  Status ForEachRun(int64_t step, F f) const;
  Result<int64_t> Count(int64_t step) const;
  Result<int64_t> TokensLocked(int64_t step) const;

  const Args args_;
  // By micro-batch, of those that have shapes: which, and its first sequence in the step of a
  // replica; all of them at the end.
  std::vector<int32_t> shape_of_;
  std::vector<int64_t> first_of_;
  std::vector<Stretch> stretches_;  // at least one
  // Sequences of a pass that ends in a step of its own; 0: the next one follows in the same step.
  int64_t pass_ = 0;

  static constexpr int64_t kRemembered = 64;  // steps
  struct Counted {
    int64_t step = 0, tokens = 0;
  };
  mutable std::mutex mutex_;  // of all below
  mutable std::array<Counted, kRemembered> counted_;
  mutable int64_t asked_ = 1, empty_ = 0;  // steps before step asked_ that are empty
};

}  // namespace pp
