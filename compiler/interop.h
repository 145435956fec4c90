// Schedules of other systems, read and written.
//
// torch-csv is what PyTorch's torch.distributed.pipelining loads and stores
// (_PipelineScheduleRuntime._load_csv, _dump_csv): a row per rank, a cell per action, STAGE TYPE
// MICRO; an empty cell is an idle step.
//
//   0F0,0F1,,0B0,0B1            d0 | F0 F1  . B0 B1
//   ,1F0,1B0,1F1,1B1            d1 |  . F0 B0 F1 B1
//
//   F        FW            SEND_F, RECV_F   the output, the input of the stage
//   B        BW            SEND_B, RECV_B   the gradient of the input, of the output
//   I, W     BW_input, BW_weight            (7F4;0B0)OVERLAP_F_B   two that overlap
//            WAIT ... sent                  WAIT_SEND_F, WAIT_SEND_B
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "schema/base/status.h"
#include "schema/program.h"
#include "schema/text.h"

namespace pp {

// The lists that the file states, with LOADs where forwards need them. Stages, devices and
// micro-batches are those that occur. Files with SEND and RECV keep them, without WAITs:
// CompileLists in compile.h makes a plan of either kind.
//
// Actions of FSDP (UNSHARD, RESHARD, REDUCE_GRAD) and WAIT_* are skipped: lowering adds their
// equivalents to a plan. Older files write B for the input half and BW for the whole backward; they
// are recognised by a W without any I.
//
// Errors: "FILE: row 2, column 7: what is wrong". Whether the schedule is right is verify's
// question. `name`, if not null, then knows the cells.
Result<Program> ParseTorchCsv(std::string_view text, const std::string& origin,
                              Naming* name = nullptr);

enum class TorchMessages : uint8_t { kCompute, kFull };
inline constexpr std::string_view kTorchMessages[] = {"compute", "full"};

// PyTorch's "compute_only" form: the compute instructions, to which it adds messages by its own
// rules; or its "compute_comms" form, with the plan's messages. There a WAIT for a value is implied
// by what uses it, a WAIT for the end of a send is WAIT_SEND (of a blocking plan right after the
// send), and each row ends with REDUCE_GRAD and WAIT_REDUCE_GRAD of its stages. Micro-batches have
// the numbers of LossOrder. Error: the first thing that PyTorch cannot express: a recomputation, a
// stage on two devices, work outside of the body.
Result<std::string> PrintTorchCsv(const Program& program,
                                  TorchMessages messages = TorchMessages::kCompute);

// PyTorch looks the loss of micro-batch m up as the m-th that its last stage has computed, so the
// forwards there have to be in order. They are where each micro-batch has its place among them as
// its number: the same schedule, as all micro-batches are alike. By micro-batch. REQUIRES: steps do
// not overlap.
std::vector<int32_t> LossOrder(const Program& program);

}  // namespace pp
