#pragma once

#include <string>
#include <vector>

#include "server/blob/gpu_history.h"
#include "server/state/records.h"
#include "sft/v1/worker_service.pb.h"

// Converts what workers report (slots, models, attempts) to database rows, and to keys that tell
// whether something changed.

namespace sft::server {

// All fields of the slots, serialized for comparison.
std::string BytesOf(const google::protobuf::RepeatedPtrField<v1::Slot>& slots);
// The stored fields of the slots, serialized: without those that change every second.
std::string SlotsKey(const google::protobuf::RepeatedPtrField<v1::Slot>& slots);
// The fields of the attempts that may change the desired set; progress does not.
std::string AttemptsKey(const google::protobuf::RepeatedPtrField<v1::AttemptStatus>& attempts);
std::string ModelsKey(const google::protobuf::RepeatedPtrField<v1::Model>& models);
// Database rows of a node's slots and models.
// What GPUs report of their use; CPU slots and simulated GPUs report none.
std::vector<GpuReading> GpuReadings(const google::protobuf::RepeatedPtrField<v1::Slot>& slots);
std::vector<SlotRecord> SlotRecords(const google::protobuf::RepeatedPtrField<v1::Slot>& slots,
                                    const std::string& node);
std::vector<ModelRecord> ModelRecords(const google::protobuf::RepeatedPtrField<v1::Model>& models,
                                      const std::string& node);

}  // namespace sft::server
