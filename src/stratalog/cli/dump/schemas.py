"""The messages inside Kafka's own topics, version by version, as Kafka 4.3.1 writes them.

``schema`` describes how these tables are read.
"""

from __future__ import annotations

# Control records: what the raft layer itself writes.
CONTROL = """
KRaftVersionRecord 0 0+: version int16, kRaftVersion int16
LeaderChangeMessage 0-1 0+: version int16, leaderId int32, voters []Voter (voterId int32, voterDirectoryId
 uuid 1+), grantingVoters []Voter
SnapshotFooterRecord 0 0+: version int16
SnapshotHeaderRecord 0 0+: version int16, lastContainedLogTimestamp int64
VotersRecord 0 0+: version int16, voters []Voter (voterId int32, voterDirectoryId uuid, endpoints []Endpoint
 (name string, host string, port uint16), kRaftVersionFeature KRaftVersionFeature (minSupportedVersion
 int16, maxSupportedVersion int16))
"""

CLUSTER_METADATA = """
RegisterBrokerRecord 0-4 0+ 0: brokerId int32, isMigratingZkBroker bool 2+, incarnationId uuid, brokerEpoch
 int64, endPoints []BrokerEndpoint (name string, host string, port uint16, securityProtocol int16), features
 []BrokerFeature (name string, minSupportedVersion int16, maxSupportedVersion int16), rack string?, fenced
 bool, inControlledShutdown bool 1+, logDirs []uuid 3+ #0, cordonedLogDirs []uuid? 4+ #1=null
UnregisterBrokerRecord 0 0+ 1: brokerId int32, brokerEpoch int64
TopicRecord 0 0+ 2: name string, topicId uuid
PartitionRecord 0-2 0+ 3: partitionId int32, topicId uuid, replicas []int32, isr []int32, removingReplicas
 []int32, addingReplicas []int32, leader int32, leaderRecoveryState int8 #0=0, leaderEpoch int32,
 partitionEpoch int32, directories []uuid 1+, eligibleLeaderReplicas []int32? 2+ #1=null, lastKnownElr
 []int32? 2+ #2=null
ConfigRecord 0 0+ 4: resourceType int8, resourceName string, name string, value string?
PartitionChangeRecord 0-2 0+ 5: partitionId int32, topicId uuid, isr []int32? #0=null, leader int32 #1=-2,
 replicas []int32? #2=null, removingReplicas []int32? #3=null, addingReplicas []int32? #4=null,
 leaderRecoveryState int8 #5=-1, directories []uuid? 1+ #8=null, eligibleLeaderReplicas []int32? 2+ #6=null,
 lastKnownElr []int32? 2+ #7=null
FenceBrokerRecord 0 0+ 7: id int32, epoch int64
UnfenceBrokerRecord 0 0+ 8: id int32, epoch int64
RemoveTopicRecord 0 0+ 9: topicId uuid
DelegationTokenRecord 0 0+ 10: owner string, requester string, renewers []string, issueTimestamp int64,
 maxTimestamp int64, expirationTimestamp int64, tokenId string
UserScramCredentialRecord 0 0+ 11: name string, mechanism int8, salt bytes, storedKey bytes, serverKey
 bytes, iterations int32
FeatureLevelRecord 0 0+ 12: name string, featureLevel int16
ClientQuotaRecord 0 0+ 14: entity []EntityData (entityType string, entityName string?), key string, value
 float64, remove bool
ProducerIdsRecord 0 0+ 15: brokerId int32, brokerEpoch int64, nextProducerId int64
BrokerRegistrationChangeRecord 0-3 0+ 17: brokerId int32, brokerEpoch int64, fenced int8 #0,
 inControlledShutdown int8 1+ #1, logDirs []uuid 2+ #2, cordonedLogDirs []uuid? 3+ #3=null
AccessControlEntryRecord 0 0+ 18: id uuid, resourceType int8, resourceName string, patternType int8,
 principal string, host string, operation int8, permissionType int8
RemoveAccessControlEntryRecord 0 0+ 19: id uuid
NoOpRecord 0 0+ 20:
ZkMigrationStateRecord 0 0+ 21: zkMigrationState int8
RemoveUserScramCredentialRecord 0 0+ 22: name string, mechanism int8
BeginTransactionRecord 0 0+ 23: name string? #0=null
EndTransactionRecord 0 0+ 24:
AbortTransactionRecord 0 0+ 25: reason string? #0=null
RemoveDelegationTokenRecord 0 0+ 26: tokenId string
RegisterControllerRecord 0 0+ 27: controllerId int32, incarnationId uuid, zkMigrationReady bool, endPoints
 []ControllerEndpoint (name string, host string, port uint16, securityProtocol int16), features
 []ControllerFeature (name string, minSupportedVersion int16, maxSupportedVersion int16)
ClearElrRecord 0 0+ 28: topicName string
"""

# A record's key and value share an id, the first int16 of the key. By the name of the decoder.
COORDINATORS = {
    "transaction-log": """
TransactionLogKey 0 none 0: transactionalId string
TransactionLogValue 0-1 1+ 0: producerId int64, previousProducerId int64 1+ #0=-1, nextProducerId int64 1+
 #1=-1, producerEpoch int16, nextProducerEpoch int16 1+ #3=-1, transactionTimeoutMs int32, transactionStatus
 int8, transactionPartitions []PartitionsSchema? (topic string, partitionIds []int32),
 transactionLastUpdateTimestampMs int64, transactionStartTimestampMs int64, clientTransactionVersion int16
 1+ #2=0
""",
    "share-group-state": """
ShareSnapshotKey 0 none 0: groupId string, topicId uuid, partition int32
ShareSnapshotValue 0 0+ 0: snapshotEpoch int32, stateEpoch int32, leaderEpoch int32, startOffset int64,
 deliveryCompleteCount int32 #0=-1, createTimestamp int64, writeTimestamp int64, stateBatches []StateBatch
 (firstOffset int64, lastOffset int64, deliveryState int8, deliveryCount int16)
ShareUpdateKey 0 none 1: groupId string, topicId uuid, partition int32
ShareUpdateValue 0 0+ 1: snapshotEpoch int32, leaderEpoch int32, startOffset int64, deliveryCompleteCount
 int32 #0=-1, stateBatches []StateBatch (firstOffset int64, lastOffset int64, deliveryState int8,
 deliveryCount int16)
""",
    "offsets": """
LegacyOffsetCommitKey 0 none 0: group string, topic string, partition int32
LegacyOffsetCommitValue 0 none 0: offset int64, metadata string, commitTimestamp int64
OffsetCommitKey 0 none 1: group string, topic string, partition int32
OffsetCommitValue 0-4 4+ 1: offset int64, leaderEpoch int32 3+, metadata string, commitTimestamp int64,
 expireTimestamp int64 1, topicId uuid 4+ #0
GroupMetadataKey 0 none 2: group string
GroupMetadataValue 0-4 4+ 2: protocolType string, generation int32, protocol string?, leader string?,
 currentStateTimestamp int64 2+, members []MemberMetadata (memberId string, groupInstanceId string? 3+,
 clientId string, clientHost string, rebalanceTimeout int32 1+, sessionTimeout int32, subscription bytes,
 assignment bytes)
ConsumerGroupMetadataKey 0 none 3: groupId string
ConsumerGroupMetadataValue 0 0+ 3: epoch int32, metadataHash int64 #0=0
ConsumerGroupPartitionMetadataKey 0 none 4: groupId string
ConsumerGroupPartitionMetadataValue 0 0+ 4: topics []TopicMetadata (topicId uuid, topicName string,
 numPartitions int32, partitionMetadata []PartitionMetadata (partition int32, racks []string))
ConsumerGroupMemberMetadataKey 0 none 5: groupId string, memberId string
ConsumerGroupMemberMetadataValue 0 0+ 5: instanceId string?, rackId string?, clientId string, clientHost
 string, subscribedTopicNames []string, subscribedTopicRegex string?, rebalanceTimeoutMs int32,
 serverAssignor string?, classicMemberMetadata ClassicMemberMetadata? #0 (sessionTimeoutMs int32,
 supportedProtocols []ClassicProtocol (name string, metadata bytes))
ConsumerGroupTargetAssignmentMetadataKey 0 none 6: groupId string
ConsumerGroupTargetAssignmentMetadataValue 0 0+ 6: assignmentEpoch int32, assignmentTimestamp int64 #0=0
ConsumerGroupTargetAssignmentMemberKey 0 none 7: groupId string, memberId string
ConsumerGroupTargetAssignmentMemberValue 0 0+ 7: topicPartitions []TopicPartition (topicId uuid, partitions
 []int32)
ConsumerGroupCurrentMemberAssignmentKey 0 none 8: groupId string, memberId string
ConsumerGroupCurrentMemberAssignmentValue 0 0+ 8: memberEpoch int32, previousMemberEpoch int32, state int8,
 assignedPartitions []TopicPartitions (topicId uuid, partitions []int32, assignmentEpochs []int32? #0),
 partitionsPendingRevocation []TopicPartitions
ShareGroupMemberMetadataKey 0 none 10: groupId string, memberId string
ShareGroupMemberMetadataValue 0 0+ 10: rackId string?, clientId string, clientHost string,
 subscribedTopicNames []string
ShareGroupMetadataKey 0 none 11: groupId string
ShareGroupMetadataValue 0 0+ 11: epoch int32, metadataHash int64
ShareGroupTargetAssignmentMetadataKey 0 none 12: groupId string
ShareGroupTargetAssignmentMetadataValue 0 0+ 12: assignmentEpoch int32, assignmentTimestamp int64 #0=0
ShareGroupTargetAssignmentMemberKey 0 none 13: groupId string, memberId string
ShareGroupTargetAssignmentMemberValue 0 0+ 13: topicPartitions []TopicPartition (topicId uuid, partitions
 []int32)
ShareGroupCurrentMemberAssignmentKey 0 none 14: groupId string, memberId string
ShareGroupCurrentMemberAssignmentValue 0 0+ 14: memberEpoch int32, previousMemberEpoch int32, state int8,
 assignedPartitions []TopicPartitions (topicId uuid, partitions []int32)
ShareGroupStatePartitionMetadataKey 0 none 15: groupId string
ShareGroupStatePartitionMetadataValue 0 0+ 15: initializingTopics []TopicPartitionsInfo (topicId uuid,
 topicName string, partitions []int32), initializedTopics []TopicPartitionsInfo, deletingTopics []TopicInfo
 (topicId uuid, topicName string)
ConsumerGroupRegularExpressionKey 0 none 16: groupId string, regularExpression string
ConsumerGroupRegularExpressionValue 0 0+ 16: topics []string, version int64, timestamp int64
StreamsGroupMetadataKey 0 none 17: groupId string
StreamsGroupMetadataValue 0 0+ 17: epoch int32, metadataHash int64, validatedTopologyEpoch int32 #0=-1,
 lastAssignmentConfigs []LastAssignmentConfig? #1 (key string, value string)
StreamsGroupMemberMetadataKey 0 none 19: groupId string, memberId string
StreamsGroupMemberMetadataValue 0 0+ 19: instanceId string?, rackId string?, clientId string, clientHost
 string, rebalanceTimeoutMs int32, topologyEpoch int32, processId string, userEndpoint Endpoint? (host
 string, port uint16), clientTags []KeyValue (key string, value string)
StreamsGroupTargetAssignmentMetadataKey 0 none 20: groupId string
StreamsGroupTargetAssignmentMetadataValue 0 0+ 20: assignmentEpoch int32, assignmentTimestamp int64 #0=0
StreamsGroupTargetAssignmentMemberKey 0 none 21: groupId string, memberId string
StreamsGroupTargetAssignmentMemberValue 0 0+ 21: activeTasks []TaskIds (subtopologyId string, partitions
 []int32), standbyTasks []TaskIds, warmupTasks []TaskIds
StreamsGroupCurrentMemberAssignmentKey 0 none 22: groupId string, memberId string
StreamsGroupCurrentMemberAssignmentValue 0 0+ 22: memberEpoch int32, previousMemberEpoch int32, state int8,
 activeTasks []TaskIds (subtopologyId string, partitions []int32, assignmentEpochs []int32? #0),
 standbyTasks []TaskIds, warmupTasks []TaskIds, activeTasksPendingRevocation []TaskIds,
 standbyTasksPendingRevocation []TaskIds, warmupTasksPendingRevocation []TaskIds
StreamsGroupTopologyKey 0 none 23: groupId string
StreamsGroupTopologyValue 0 0+ 23: epoch int32, subtopologies []Subtopology (subtopologyId string,
 sourceTopics []string, sourceTopicRegex []string, stateChangelogTopics []TopicInfo (name string, partitions
 int32, replicationFactor int16, topicConfigs []TopicConfig (key string, value string)),
 repartitionSinkTopics []string, repartitionSourceTopics []TopicInfo, copartitionGroups []CopartitionGroup
 (sourceTopics []int16, sourceTopicRegex []int16, repartitionSourceTopics []int16))
""",
}

# What a classic consumer puts into two fields of GroupMetadataValue.
CONSUMER_PROTOCOL = """
ConsumerProtocolAssignment 0-3 none: assignedPartitions []TopicPartition (topic string, partitions []int32),
 userData bytes?
ConsumerProtocolSubscription 0-3 none: topics []string, userData bytes?, ownedPartitions []TopicPartition 1+
 (topic string 1+, partitions []int32 1+), generationId int32 2+, rackId string? 3+
"""
