#pragma once

#include <memory>

#include "worker/channel/flight_record.h"
#include "worker/engine/dist/communicator.h"

namespace sft::engine {

// `inner` with every collective noted in `flight` (borrowed; outlives it and the groups made of
// it): begun, waited for, done. On a GPU a wait only orders the device's work, so a collective
// counts as done when the step's result has been seen (FlightRecorder::EndOwnWork). Groups are
// named by their ranks: "world", "0,2", and a second one of the same ranks "0,2#2".
std::unique_ptr<Communicator> MakeRecordedCommunicator(std::unique_ptr<Communicator> inner,
                                                       channel::FlightRecorder& flight);

}  // namespace sft::engine
