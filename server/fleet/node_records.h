#pragma once

#include <string>
#include <vector>

#include "server/state/records.h"
#include "sft/v1/worker_service.pb.h"

// What workers report of slots, models and attempts, as rows of the database and as keys that tell
// whether something changed.

namespace sft::server {

// All of the slots, to compare with.
std::string BytesOf(const google::protobuf::RepeatedPtrField<v1::Slot>& slots);
// Slots as they are stored: without what changes from second to second.
std::string SlotsKey(const google::protobuf::RepeatedPtrField<v1::Slot>& slots);
// What may change the desired set: progress does not.
std::string AttemptsKey(const google::protobuf::RepeatedPtrField<v1::AttemptStatus>& attempts);
std::string ModelsKey(const google::protobuf::RepeatedPtrField<v1::Model>& models);
// Rows of a node's slots and models.
std::vector<SlotRecord> SlotRecords(const google::protobuf::RepeatedPtrField<v1::Slot>& slots,
                                    const std::string& node);
std::vector<ModelRecord> ModelRecords(const google::protobuf::RepeatedPtrField<v1::Model>& models,
                                      const std::string& node);

}  // namespace sft::server
