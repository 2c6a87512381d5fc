#pragma once

#include <memory>

#include "worker/channel/flight_record.h"
#include "worker/engine/dist/communicator.h"
#include "worker/engine/dist/traffic.h"

namespace sft::engine {

// `inner` with every collective noted in `flight` (borrowed; outlives it and the groups made of
// it): begun, waited for, done. On a GPU a wait only orders the device's work, so a collective
// counts as done when the step's result has been seen (FlightRecorder::EndOwnWork). Groups are
// named by their ranks: "world", "0,2", and a second one of the same ranks "0,2#2". What they cost
// goes to `meter` (borrowed as `flight`, may be null) by axis: "world" for all ranks, "group" for
// others, until they are named.
std::unique_ptr<Communicator> MakeRecordedCommunicator(std::unique_ptr<Communicator> inner,
                                                       channel::FlightRecorder& flight,
                                                       TrafficMeter* meter = nullptr);

}  // namespace sft::engine
